// Puts what an `overlap` directive names on two compute streams.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> overlap(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
