// Puts every node on a group of devices, by `place` and `replicate`. Each group that reads a model
// input gets an Input of its own; gradients are added where the value was made.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> place(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
