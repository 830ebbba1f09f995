// Adds a Backward for every call that a gradient reaches, the Seed that starts it, and an Add where
// a value has several readers (parts in reverse forward order, as autograd adds them).
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> add_backward(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
