// The last step: the graph's nodes become the instructions of each role.
#pragma once

#include "compiler/compile.h"

namespace piper::compiler {

/// Emits one plan a role: instructions in issue order, slots with the instruction that frees each,
/// events where streams wait for each other, transport edges. The graph must be acyclic and have
/// streams.
ir::PlanSet emit_plans(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
