// Puts every node on a group of devices, by `place`, `replicate`, `shard` and `shard_tensor`. What a
// call reads and makes may be on groups of the same devices with other layouts than its own. Each
// group that reads a model input gets an Input of its own; gradients are added where the value was
// made.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> place(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
