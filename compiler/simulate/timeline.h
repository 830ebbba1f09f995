// What a simulation says, as a timeline for the pictures.
#pragma once

#include "compiler/simulate/simulate.h"
#include "ir/timeline.h"

namespace piper::compiler {

/// A lane for each stream of the simulated devices; empty without SimulateOptions::timeline.
/// `model` may be null.
ir::Timeline timeline_of(const Simulation& simulation, const ir::PlanSet& plans,
                         const ir::ModelSpec* model);

/// Of a measured timeline of all devices: the spans by device, in the order of PlanSet::devices,
/// and instruction. They point into it.
std::vector<std::vector<const ir::TimelineSpan*>> by_instruction(const ir::Timeline& timeline,
                                                                 const ir::PlanSet& plans);

/// What an iteration would have taken if each instruction had taken what it did, and messages and
/// collectives nothing: the limit that cores and bubbles set. An error of the simulator's.
Result<double> longest_path(const ir::Timeline& timeline, const ir::PlanSet& plans,
                            const ir::ModelSpec& model);

} // namespace piper::compiler
