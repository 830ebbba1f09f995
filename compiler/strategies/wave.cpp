#include "compiler/strategies/fill_weights.h"
#include "compiler/strategies/schedules.h"

#include <set>

namespace piper::compiler {

namespace {

struct Stage {
  int index = 0;
  int64_t forwards = 0, backwards = 0; ///< the microbatch of its next F, of its next I
};

struct Rank {
  std::vector<Stage> stages; ///< the deepest first
  std::vector<Step> steps;   ///< F and I
  int live = 0, owed = 0;    ///< forwards whose W has not run; of them, those whose I has
};

/// Stage s of a zig-zag: down the ranks, up again, down, …
int rank_of(int stage, int ranks) {
  const int place = stage % ranks;
  return stage / ranks % 2 == 0 ? place : ranks - 1 - place;
}

} // namespace

ScheduleTable wave(const ScheduleShape& shape) {
  const int p = shape.ranks, last = p * shape.chunks - 1;
  if (shape.chunks == 2)
    return zbv(shape);
  std::vector<Rank> ranks(p);
  for (int s = last; s >= 0; --s)
    ranks[rank_of(s, p)].stages.push_back({s});

  std::set<Action> done;
  int64_t in_flight = 0; // microbatches between the first stage's F and its I
  const auto oldest_backward = [&](Rank& rank) {
    Stage* oldest = nullptr;
    for (Stage& s : rank.stages)
      if (done.contains({s.index, 'F', s.backwards}) &&
          (s.index == last || done.contains({s.index + 1, 'I', s.backwards})) &&
          (!oldest || s.backwards < oldest->backwards))
        oldest = &s;
    return oldest;
  };
  // A rank that holds all stages of p microbatches needs no other forward before a W.
  const auto deepest_forward = [&](Rank& rank) -> Stage* {
    if (rank.live < p * shape.chunks)
      for (Stage& s : rank.stages)
        if (s.forwards < shape.microbatches &&
            (s.index == 0 ? in_flight < p : done.contains({s.index - 1, 'F', s.forwards})))
          return &s;
    return nullptr;
  };

  // In unit times, one slot after the other; what runs in a slot is done in the next.
  for (bool any = true; any;) {
    any = false;
    std::vector<Action> slot;
    for (Rank& rank : ranks) {
      if (Stage* s = oldest_backward(rank)) {
        slot.push_back({s->index, 'I', s->backwards++});
        in_flight -= s->index == 0;
        ++rank.owed;
        rank.steps.push_back(slot.back());
      } else if (s = deepest_forward(rank); s) {
        slot.push_back({s->index, 'F', s->forwards++});
        in_flight += s->index == 0;
        ++rank.live;
        rank.steps.push_back(slot.back());
      } else if (rank.owed > 0) {
        --rank.owed, --rank.live;
      } else {
        continue;
      }
      any = true;
    }
    done.insert(slot.begin(), slot.end());
  }
  std::vector<std::vector<Step>> rows;
  for (Rank& rank : ranks)
    rows.push_back(std::move(rank.steps));
  return fill_weights(ScheduleTable(std::move(rows)), p * shape.chunks);
}

} // namespace piper::compiler
