// Cuts the Backward of every call that `split_backward` matches into BackwardInput and
// BackwardWeight. Source: zero-bubble pipelines (arXiv 2401.10241).
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> split_backward(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
