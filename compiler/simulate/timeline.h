// What a simulation says, as a timeline for the pictures.
#pragma once

#include "compiler/simulate/simulate.h"
#include "ir/timeline.h"

namespace piper::compiler {

/// A lane for each stream of the simulated devices; empty without SimulateOptions::timeline.
/// `model` may be null.
ir::Timeline timeline_of(const Simulation& simulation, const ir::PlanSet& plans,
                         const ir::ModelSpec* model);

} // namespace piper::compiler
