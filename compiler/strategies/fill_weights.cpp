#include "compiler/strategies/fill_weights.h"

#include <deque>
#include <set>

namespace piper::compiler {

ScheduleTable fill_weights(const ScheduleTable& order, int limit) {
  struct Rank {
    std::vector<Step> steps;
    size_t next = 0;            ///< of the order
    std::deque<Action> waiting; ///< W whose I has run
    int live = 0;               ///< forwards whose W has not run
  };
  std::vector<Rank> ranks(order.ranks());
  std::set<Action> done;
  const auto ready = [&](const Action& action) {
    const auto [stage, pass, m] = action;
    if (pass == 'F')
      return stage == 0 || done.contains({stage - 1, 'F', m});
    return done.contains({stage, 'F', m}) &&
           (stage + 1 == order.stages() || done.contains({stage + 1, 'I', m}));
  };
  const auto next_of = [&](size_t r) -> const Action* {
    const auto& row = order.rows()[r];
    return ranks[r].next < row.size() ? &row[ranks[r].next].action : nullptr;
  };

  // One slot at a time; what runs in a slot is done in the next.
  while (true) {
    std::vector<Action> slot;
    bool unfinished = false, short_of_memory = false;
    for (size_t r = 0; r < ranks.size(); ++r) {
      Rank& rank = ranks[r];
      const Action* next = next_of(r);
      unfinished |= next || !rank.waiting.empty();
      const bool may_start = next && ready(*next);
      const bool fits = next && (next->pass != 'F' || rank.live < limit);
      if (may_start && fits) {
        ++rank.next;
        slot.push_back(*next);
        if (next->pass == 'F')
          ++rank.live;
        else
          rank.waiting.push_back({next->stage, 'W', next->microbatch});
      } else if (!rank.waiting.empty()) {
        slot.push_back(rank.waiting.front());
        rank.waiting.pop_front();
        --rank.live;
      } else {
        short_of_memory |= may_start;
        continue;
      }
      rank.steps.push_back(slot.back());
    }
    if (!unfinished)
      break;
    if (slot.empty()) {
      if (!short_of_memory)
        break; // the order itself cannot run; `check` says why
      ++limit;
    }
    done.insert(slot.begin(), slot.end());
  }

  std::vector<std::vector<Step>> rows;
  for (Rank& rank : ranks)
    rows.push_back(std::move(rank.steps));
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
