// Turns `order` directives into temporal edges between the compute nodes of each group.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> order(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
