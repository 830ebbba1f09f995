// Cuts the batch: every node once a microbatch, the Seed scaled by 1 / microbatches.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> split_batch(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
