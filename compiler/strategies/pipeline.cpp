#include "compiler/strategies/strategies.h"

#include <algorithm>
#include <string>

namespace piper::compiler {

using namespace ir;

namespace {

/// How the passes of a table are called in filters.
std::string pass_name(char pass) {
  return pass == 'I' ? "BI" : pass == 'W' ? "BW" : std::string(1, pass);
}

Filter filter_of(const Action& action) {
  return {{"stage", action.stage}, {"PASS", pass_name(action.pass)}, {"MB", action.microbatch}};
}

/// The microbatches whose backward a stage runs in halves.
std::vector<int64_t> split_microbatches(const ScheduleTable& table, int stage) {
  std::vector<int64_t> microbatches;
  for (const auto& row : table.rows())
    for (const Step& step : row)
      for (const Action& action : step.actions())
        if (action.stage == stage && action.pass == 'I')
          microbatches.push_back(action.microbatch);
  std::sort(microbatches.begin(), microbatches.end());
  return microbatches;
}

/// The microbatches that pass a stage on a rank.
std::vector<int64_t> microbatches_of(const ScheduleTable& table, int rank, int stage) {
  std::vector<int64_t> microbatches;
  for (const Step& step : table.rows()[rank])
    for (const Action& action : step.actions())
      if (action.stage == stage && action.pass == 'F')
        microbatches.push_back(action.microbatch);
  std::sort(microbatches.begin(), microbatches.end());
  return microbatches;
}

} // namespace

Result<Strategy> pipeline(const PipelineShape& shape, const ScheduleTable& table) {
  PIPER_CHECK_OK(table.check());
  PIPER_TRY(const auto stages,
            cut_stages(*shape.model, table.stages(), shape.costs,
                       shape.model->batch / shape.replicas / table.microbatches()));
  Strategy strategy;
  strategy.split({}, table.microbatches());
  std::vector<bool> has_weights(table.stages());
  for (int s = 0; s < table.stages(); ++s) {
    std::vector<std::string> calls;
    for (CallId call : stages[s]) {
      calls.push_back(shape.model->call(call).name);
      has_weights[s] = has_weights[s] || !shape.model->call(call).params.empty();
    }
    strategy.tag({{"call", std::move(calls)}}, "stage", s);
  }
  for (int s = 0; s < table.stages(); ++s) {
    const std::vector<int> ranks = table.ranks_of(s);
    for (int rank : ranks) {
      Filter filter{{"stage", s}};
      if (ranks.size() > 1)
        filter.add({"MB", microbatches_of(table, rank, s)});
      shape.place(strategy, filter, stages[s], shape.devices(rank));
    }
  }
  for (int s = 0; s < table.stages(); ++s) {
    std::vector<int64_t> split = split_microbatches(table, s);
    if (static_cast<int64_t>(split.size()) == table.microbatches())
      strategy.split_backward({{"stage", s}});
    else if (!split.empty())
      strategy.split_backward({{"stage", s}, {"MB", std::move(split)}});
  }
  for (const auto& row : table.rows()) {
    std::vector<std::vector<Filter>> groups;
    for (const Step& step : row) {
      std::vector<Filter> group;
      for (const Action& action : step.actions())
        if (action.pass != 'W' || has_weights[action.stage])
          group.push_back(filter_of(action));
      if (!group.empty())
        groups.push_back(std::move(group));
    }
    if (groups.size() > 1)
      strategy.order(std::move(groups));
  }
  for (const auto& row : table.rows())
    for (const Step& step : row)
      if (step.beside)
        strategy.overlap(filter_of(step.action), filter_of(*step.beside));
  for (int s = 0; s < table.stages(); ++s)
    strategy.fuse({{"stage", s}});
  return strategy;
}

} // namespace piper::compiler
