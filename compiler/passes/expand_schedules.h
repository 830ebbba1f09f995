// Expands `schedule` directives into the directives that the named builder makes for this model.
#pragma once

#include "compiler/cost/cost_model.h"
#include "ir/model_spec.h"
#include "ir/strategy.h"

namespace piper::compiler {

/// The strategy without any Schedule in it. Errors name the directive and what is wrong with its
/// expression. Stages are balanced by `costs` if given, else by the model's declared FLOPs.
Result<ir::Strategy> expand_schedules(const ir::ModelSpec& model, const ir::Strategy& strategy,
                                      const CostModel* costs = nullptr);

} // namespace piper::compiler
