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

/// What a session's epochs are compiled for.
struct CompileTarget {
  uint32_t devices = 0;
  std::vector<ir::StateKind> kinds; ///< the arrays that the optimizer keeps, which move
  int64_t memory_cap = 0; ///< bytes of a device; plans that may take more are refused. 0: no cap
  bool overlap = true;    ///< false: every device does one thing at a time (simulate/ablate.h)
};

/// Compiles `strategy` for training and evaluation, and the migration from `from` (null: there is
/// no state yet). Errors are in the report.
CompiledEpoch compile_epoch(std::shared_ptr<const ir::ModelSpec> model,
                            const StrategyText& strategy, Epoch epoch, const ir::PlanSet* from,
                            const CompileTarget& target);

} // namespace piper::actors
