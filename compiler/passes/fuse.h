// Merges neighbouring calls of one pass and microbatch into one node, by `fuse`, and cuts Forward
// and Backward into the same chunks, each of which autograd sees as one graph.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> fuse(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
