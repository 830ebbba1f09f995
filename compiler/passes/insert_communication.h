// Puts a Send and a Recv on every edge between two groups; a value that several nodes of a group
// read is sent once.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> insert_communication(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
