// Where `recompute` matches all calls of a chunk, its forward keeps nothing and a Recompute, timed
// by the gradients for which the backward waits, keeps it instead. Source: arXiv 1604.06174.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> recompute(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
