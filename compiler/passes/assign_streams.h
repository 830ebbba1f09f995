// Gives every node a stream. A Send goes where its value is made, so that it costs no hop; receives
// and collectives have streams of their own, so that they never hold up compute.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> assign_streams(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
