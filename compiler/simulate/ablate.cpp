#include "compiler/simulate/ablate.h"

#include "compiler/passes/expand_schedules.h"

#include <algorithm>

namespace piper::compiler {

using namespace ir;

Result<Strategy> without_fusion(const ModelSpec& model, const Strategy& strategy) {
  PIPER_TRY(Strategy changed, expand_schedules(model, strategy));
  std::erase_if(changed.directives, [](const Directive& directive) {
    return std::holds_alternative<Fuse>(directive.body);
  });
  return changed;
}

Result<Strategy> without_bucketing(const ModelSpec& model, const Strategy& strategy) {
  PIPER_TRY(Strategy changed, expand_schedules(model, strategy));
  for (Directive& directive : changed.directives)
    if (auto* replicate = std::get_if<Replicate>(&directive.body))
      replicate->bucket_mb = 1e-9; // less than any parameter takes
  return changed;
}

Result<Strategy> with_prefetch(const ModelSpec& model, const Strategy& strategy, int64_t distance) {
  PIPER_TRY(Strategy changed, expand_schedules(model, strategy));
  std::erase_if(changed.directives, [](const Directive& directive) {
    return std::holds_alternative<Prefetch>(directive.body);
  });
  changed.prefetch({}, distance);
  return changed;
}

PlanSet without_overlap(PlanSet plans) {
  for (Plan& plan : plans.plans) {
    for (Instruction& each : plan.instructions) {
      each.stream = 0;
      each.waits.clear();
      each.records = {};
    }
    plan.streams = {"compute"};
    plan.events = 0;
  }
  return plans;
}

} // namespace piper::compiler
