// Collects parameters into flat buckets, by holder and by size, and adds what happens to them once
// per iteration: reduction, Commit, Update. With shard_optimizer (ZeRO-1, arXiv 1910.02054) a
// reduce-scatter and an all-gather come in place of the all-reduce; with shard_within (MiCS, arXiv
// 2205.00119; hybrid sharding, arXiv 2304.11277) these stay within sub-groups, and shards are
// all-reduced across them.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> assign_buckets(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
