// Lowers a model to a graph: one Forward a call, an Input for each model input, a Loss. Regions are
// the segments. Applies the `tag` directives, so that every later pass sees their tags.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> lower_model(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
