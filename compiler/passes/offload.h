// Where `offload` matches all calls of a chunk, what its forward keeps for its backward leaves for
// another memory when the forward is done, and comes back before the backward; so does what a
// backward for inputs leaves to one for weights that is put off. Of a chunk that is computed again,
// it is what the repetition reads. What `offload` says of parameters and of the optimizer's state
// is for assign_buckets. Source of the idea: vDNN (arXiv 1602.08124).
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> offload(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
