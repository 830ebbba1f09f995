#include "compiler/passes/expand_schedules.h"

#include "compiler/strategies/strategies.h"

namespace piper::compiler {

using namespace ir;

Result<Strategy> expand_schedules(const ModelSpec& model, const Strategy& strategy,
                                  const CostModel* costs) {
  Strategy expanded;
  expanded.name = strategy.name;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const Directive& directive = strategy.directives[d];
    const auto* schedule = std::get_if<Schedule>(&directive.body);
    if (!schedule) {
      expanded.directives.push_back(directive);
      continue;
    }
    auto made = build_strategy(model, *schedule, costs);
    if (!made.ok()) {
      Error error = std::move(made).error();
      error.where = strategy.describe(d) + (error.where.empty() ? "" : ", " + error.where);
      return error;
    }
    for (Directive& part : made->directives)
      expanded.add(std::move(part.body), directive.origin);
    if (expanded.name.empty())
      expanded.name = schedule->expression;
  }
  return expanded;
}

} // namespace piper::compiler
