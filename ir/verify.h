// The verifier: refuses a graph or a plan set that could hang, race or lose something. An error
// names the node or instruction, the device, and the directive it came from.
#pragma once

#include "ir/graph.h"
#include "ir/plan.h"

namespace piper::ir {

/// Every input has one producer at the same place, ids are unique, edges are acyclic (the error
/// prints the shortest cycle found and the directives on it), tags and groups are in range.
Result<void> verify(const Graph& graph);

/// That every device ends the iteration with what one device alone would have computed, whatever
/// the streams' speeds and however little is buffered; docs/verification.md has the rules one by
/// one:
///  - groups, roles, devices and buckets agree, and what an instruction names exists;
///  - a slot is written before it is read, freed once, not live at the end, and holds what it says;
///  - every microbatch of every call goes forward and backward once on each device of one group;
///  - the gradient of every value is complete where it is used, and scaled once;
///  - every parameter is in one bucket; its gradients are summed once over all its holders, then
///    committed, then updated once, and no two streams touch them at a time;
///  - every key is sent once and received once, and each channel has one order;
///  - everything ends where sends block and channels carry one message at a time (no deadlock).
/// Of a migration: that it fills every array that it moves, once, and ends. Takes time linear in
/// the plans, times their streams. Peak memory is for memory_bound.h.
Result<void> verify(const PlanSet& plans, const ModelSpec& model);

} // namespace piper::ir
