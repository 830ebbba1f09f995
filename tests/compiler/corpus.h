// Good plan sets of every shape that a strategy can give them.
#pragma once

#include "ir/model_spec.h"
#include "ir/plan.h"
#include "ir/strategy.h"

#include <memory>
#include <string>
#include <vector>

namespace piper::test {

struct GoodPlans {
  std::string name;
  std::shared_ptr<const ir::ModelSpec> model;
  ir::PlanSet plans;
};

/// Fails the test on an error.
ir::PlanSet plans_of(const std::shared_ptr<const ir::ModelSpec>& model,
                     const ir::Strategy& strategy, ir::PlanKind kind = ir::PlanKind::Train);

/// Replicas, optimizer, gradients and parameters sharded, stages, tied weights, skip connections,
/// uneven stages, several stages a device, two compute streams, several chunks, backwards in two,
/// forwards run again, tensors, tokens and experts cut over blocks, evaluations.
std::vector<GoodPlans> corpus();

} // namespace piper::test
