// Puts communication on every edge whose ends are on two groups: within the same devices a
// Redistribute from one layout to another, else a Send and a Recv. A value that several nodes of a
// group read is moved once.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> insert_communication(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
