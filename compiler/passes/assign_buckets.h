// Collects parameters into flat buckets, by holder and by size, and adds what happens to them once
// per iteration: reduction, Commit, Update, and with shard_optimizer (ZeRO-1, arXiv 1910.02054) the
// reduce-scatter and all-gather in place of the all-reduce.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> assign_buckets(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
