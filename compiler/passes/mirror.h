// Where `mirror` matches a call that uses a bucket, other devices keep further copies of what a
// device alone has of it: the range that the rank owns of the parameters and of the optimizer's
// state. What several replicas have is safe without.
//
// A mirror is no copy that is sent after the fact, but a replica of the state machine that a bucket
// is (Schneider, ACM Computing Surveys 22(4), 1990): it starts from the same state, gets the same
// gradients, and makes the same update, bit by bit. Gradients are a fraction of what the update
// changes, and they come before the commit: so once an iteration is kept, all copies of its state
// can be, whichever device is lost then; and none mixes two iterations, for none is updated before.
#pragma once

#include "compiler/passes/pass.h"

namespace piper::compiler {

/// Chooses who mirrors each bucket (ir::Bucket::mirrors): for assign_buckets, so that the groups
/// are the same in evaluations. Mirrors are as far apart as the numbering of the devices allows:
/// those of one process are numbered in a row.
Result<void> place_mirrors(ir::Graph& graph);

/// Adds what mirrors do in an iteration.
Result<ir::Graph> mirror(const CompileOptions& options, const ir::Graph& graph);

} // namespace piper::compiler
