// Where `replicate` shards gradients or parameters: whole ones live only while they are needed.
//
// A window of a bucket is a run of its group's compute, in the order in which that will be issued,
// that needs it whole: to use its parameters (from a Gather to a Release), or to add to its
// gradients (from a ZeroGrads to a ReduceScatter). The next window waits for the end of the last
// one; how early a Gather may start is bounded, so that what is gathered ahead does not pile up.
// Where sub-groups shard apart from each other, their sums are added up once, after the last
// window. Sources: ZeRO (arXiv 1910.02054), PyTorch FSDP (arXiv 2304.11277).
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

Result<ir::Graph> shard_state(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
