// What the compiler actor does for one epoch: all plans of a strategy, as fragments.
#pragma once

#include "actors/protocol.h"
#include "ir/model_spec.h"
#include "ir/plan.h"

#include <memory>
#include <vector>

namespace piper::actors {

struct CompiledEpoch {
  CompileReport report;
  ir::PlanSet train; ///< for the migration from it
};

/// Compiles `strategy` for training and evaluation, and the migration from `from` (null: there is
/// no state yet). `kinds` are the arrays that move. Without `overlap` every device does one thing
/// at a time (compiler/simulate/ablate.h). Errors are in the report.
CompiledEpoch compile_epoch(std::shared_ptr<const ir::ModelSpec> model,
                            const StrategyText& strategy, Epoch epoch, const ir::PlanSet* from,
                            uint32_t devices, const std::vector<ir::StateKind>& kinds,
                            bool overlap = true);

} // namespace piper::actors
