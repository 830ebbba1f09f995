#include "compiler/strategies/schedule_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace piper::compiler {

namespace {

struct Place {
  int rank = 0;
  size_t step = 0;
};
using Places = std::map<Action, Place>;

std::string describe(const Place& place) {
  return fmt::format("rank {}, step {}", place.rank, place.step);
}

/// Where each action is; one that is there twice is an error.
Result<Places> find_places(const std::vector<std::vector<Step>>& rows) {
  Places places;
  for (size_t rank = 0; rank < rows.size(); ++rank)
    for (size_t step = 0; step < rows[rank].size(); ++step)
      for (const Action& action : rows[rank][step].actions()) {
        const Place here{static_cast<int>(rank), step};
        const auto [at, added] = places.try_emplace(action, here);
        if (!added)
          return user_error(fmt::format("{} is there twice, first at {}", action.to_string(),
                                        describe(at->second)),
                            describe(here), "each pass of a microbatch runs once");
      }
  return places;
}

/// What must have ended before an action starts. A backward's output gradient comes from the next
/// stage's B or I, whichever the table has.
std::vector<Action> needs(const Action& action, int stages, const Places& places) {
  const auto [stage, pass, microbatch] = action;
  const auto backward = [&](int of) {
    const Action whole{of, 'B', action.microbatch};
    return places.contains(whole) ? whole : Action{of, 'I', action.microbatch};
  };
  if (pass == 'F')
    return stage == 0 ? std::vector<Action>{} : std::vector{Action{stage - 1, 'F', microbatch}};
  if (pass == 'W')
    return {{stage, 'I', microbatch}};
  std::vector<Action> list = {{stage, 'F', microbatch}};
  if (stage + 1 < stages)
    list.push_back(backward(stage + 1));
  return list;
}

Result<void> check_pairs(const std::vector<std::vector<Step>>& rows) {
  for (size_t rank = 0; rank < rows.size(); ++rank)
    for (size_t step = 0; step < rows[rank].size(); ++step) {
      const Step& pair = rows[rank][step];
      if (pair.beside && (pair.action.pass == 'F') == (pair.beside->pass == 'F'))
        return user_error(fmt::format("{} is no forward beside a backward", pair.to_string()),
                          describe({static_cast<int>(rank), step}), "pair an F with a B, I or W");
    }
  return {};
}

/// Why the rows of a table cannot be run to their end. `reached`: the steps that could be.
Error cannot_start(const Step& step, const Place& here, const Action& need, const Places& places,
                   const ScheduleTiming& reached) {
  const auto at = places.find(need);
  std::string why;
  if (at == places.end())
    why = "which is nowhere in the schedule";
  else if (at->second.rank == here.rank)
    why = at->second.step == here.step
              ? "which runs beside it"
              : fmt::format("which this rank runs later, at step {}", at->second.step);
  else
    why = fmt::format("which rank {} runs at step {}, but it gets no further than step {}",
                      at->second.rank, at->second.step, reached.start[at->second.rank].size());
  return user_error(
      fmt::format("{} can never start: it needs {}, {}", step.to_string(), need.to_string(), why),
      describe(here), "reorder the rows so that every pass follows what it reads");
}

} // namespace

std::string Action::to_string() const {
  return fmt::format("{}{}{}", stage, pass, microbatch);
}

std::vector<Action> Step::actions() const {
  return beside ? std::vector{action, *beside} : std::vector{action};
}

std::string Step::to_string() const {
  return beside ? action.to_string() + "&" + beside->to_string() : action.to_string();
}

double Durations::of(const Step& step) const {
  const auto one = [&](const Action& action) {
    return action.pass == 'F' ? F : action.pass == 'B' ? B : action.pass == 'I' ? I : W;
  };
  if (!step.beside)
    return one(step.action);
  // What runs side by side saves the same whichever half of the backward it is.
  return one(step.action) + one(*step.beside) - (F + B - FB);
}

ScheduleTable::ScheduleTable(std::vector<std::vector<Step>> rows) : rows_(std::move(rows)) {
  for (const auto& row : rows_)
    for (const Step& step : row)
      for (const Action& action : step.actions()) {
        stages_ = std::max(stages_, action.stage + 1);
        microbatches_ = std::max(microbatches_, action.microbatch + 1);
      }
}

std::vector<int> ScheduleTable::ranks_of(int stage) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < this->ranks(); ++rank)
    if (std::any_of(rows_[rank].begin(), rows_[rank].end(), [&](const Step& step) {
          return step.action.stage == stage || (step.beside && step.beside->stage == stage);
        }))
      ranks.push_back(rank);
  return ranks;
}

Result<void> ScheduleTable::check() const {
  if (stages_ == 0)
    return user_error("the schedule is empty", "", "a row a rank, such as 0F0,0B0");
  for (size_t rank = 0; rank < rows_.size(); ++rank)
    if (rows_[rank].empty())
      return user_error(fmt::format("rank {} has nothing to run", rank), "", "leave out its row");
  PIPER_TRY(const Places places, find_places(rows_));
  for (int stage = 0; stage < stages_; ++stage)
    for (int64_t microbatch = 0; microbatch < microbatches_; ++microbatch) {
      const auto find = [&](char pass) {
        const auto at = places.find({stage, pass, microbatch});
        return at == places.end() ? nullptr : &at->second;
      };
      const Place *f = find('F'), *b = find('B'), *i = find('I'), *w = find('W');
      const auto missing = [&](const char* what) {
        return user_error(
            fmt::format("stage {} has no {} of microbatch {}", stage, what, microbatch), "",
            fmt::format("the schedule names {} stages and {} microbatches; each stage needs F, and "
                        "B or else I and W, of each microbatch",
                        stages_, microbatches_));
      };
      if (!f)
        return missing("forward (F)");
      if (b && (i || w))
        return user_error(fmt::format("stage {} has both B and {} of microbatch {}", stage,
                                      i ? "I" : "W", microbatch),
                          describe(i ? *i : *w), "B is I and W in one: keep either");
      if (!b && !i)
        return missing(w ? "backward for inputs (I)" : "backward (B)");
      if (!b && !w)
        return missing("backward for weights (W)");
      for (const Place* other : {b, i, w})
        if (other && other->rank != f->rank)
          return user_error(fmt::format("stage {} runs microbatch {} forward on rank {} and "
                                        "backward on rank {}",
                                        stage, microbatch, f->rank, other->rank),
                            describe(*other), "what a forward keeps does not travel");
    }
  PIPER_CHECK_OK(check_pairs(rows_));
  PIPER_CHECK_OK(evaluate());
  return {};
}

Result<ScheduleTiming> ScheduleTable::evaluate(const Durations& durations) const {
  PIPER_TRY(const Places places, find_places(rows_));
  const size_t ranks = rows_.size();
  ScheduleTiming timing;
  if (ranks == 0)
    return timing;
  timing.start.resize(ranks);
  timing.peak.resize(ranks);
  std::vector<double> clock(ranks), busy(ranks);
  std::vector<int> live(ranks);
  std::map<Action, double> end;

  // What a step still waits for, or none and the time from which on it can run.
  const auto missing = [&](const Step& step, double& ready) -> std::optional<Action> {
    for (const Action& action : step.actions())
      for (const Action& need : needs(action, stages_, places)) {
        const auto done = end.find(need);
        if (done == end.end())
          return need;
        ready = std::max(ready, done->second);
      }
    return {};
  };
  const auto run = [&](size_t rank, const Step& step, double start) {
    const double time = durations.of(step);
    timing.start[rank].push_back(start);
    busy[rank] += time;
    clock[rank] = start + time;
    for (const Action& action : step.actions())
      end[action] = clock[rank];
    for (const Action& action : step.actions())
      live[rank] += action.pass == 'F';
    timing.peak[rank] = std::max(timing.peak[rank], live[rank]);
    for (const Action& action : step.actions())
      live[rank] -= action.pass == 'B' || action.pass == 'W';
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t rank = 0; rank < ranks; ++rank)
      while (timing.start[rank].size() < rows_[rank].size()) {
        const Step& step = rows_[rank][timing.start[rank].size()];
        double ready = clock[rank];
        if (missing(step, ready))
          break;
        run(rank, step, ready);
        progress = true;
      }
  }

  // Of the ranks that are stuck, rather one that is so by its own row than one that waits for it.
  std::optional<Error> stuck;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Place here{static_cast<int>(rank), timing.start[rank].size()};
    if (here.step == rows_[rank].size())
      continue;
    const Step& step = rows_[rank][here.step];
    double ready = 0;
    const Action need = *missing(step, ready);
    const auto at = places.find(need);
    const bool own = at == places.end() || at->second.rank == here.rank;
    if (own || !stuck)
      stuck = cannot_start(step, here, need, places, timing);
    if (own)
      break;
  }
  if (stuck)
    return *stuck;
  timing.makespan = *std::max_element(clock.begin(), clock.end());
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double first = timing.start[rank].empty() ? 0 : timing.start[rank].front();
    timing.idle.push_back(timing.makespan - busy[rank]);
    timing.gaps.push_back(clock[rank] - first - busy[rank]);
  }
  return timing;
}

} // namespace piper::compiler
