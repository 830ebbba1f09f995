// Ablations: the same job without one of the things that make it fast, so that what each is worth
// can be measured, in the simulator or for real. Pure functions on a strategy or on its plans.
#pragma once

#include "ir/model_spec.h"
#include "ir/plan.h"
#include "ir/strategy.h"

namespace piper::compiler {

/// Every call is an instruction of its own. The strategy's schedules are expanded.
Result<ir::Strategy> without_fusion(const ir::ModelSpec& model, const ir::Strategy& strategy);

/// Gradients are reduced in the smallest buckets there are, a segment each. The strategy's
/// schedules are expanded.
Result<ir::Strategy> without_bucketing(const ir::ModelSpec& model, const ir::Strategy& strategy);

/// Sharded parameters are gathered so many windows ahead, whatever the strategy says (see the
/// directive `prefetch`). The strategy's schedules are expanded.
Result<ir::Strategy> with_prefetch(const ir::ModelSpec& model, const ir::Strategy& strategy,
                                   int64_t distance);

/// Every device does one thing at a time: all instructions on one stream, in issue order. Plans
/// are issued in an order that never has to wait for a later instruction, so these still end.
ir::PlanSet without_overlap(ir::PlanSet plans);

} // namespace piper::compiler
