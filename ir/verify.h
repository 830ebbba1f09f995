// The verifier: refuses a graph or a plan set that could hang, race or lose something. An error
// names the node or instruction, the device, and the directive it came from.
#pragma once

#include "ir/graph.h"
#include "ir/plan.h"

namespace piper::ir {

/// Every input has one producer at the same place, ids are unique, edges are acyclic (the error
/// prints the shortest cycle found and the directives on it), tags and groups are in range.
Result<void> verify(const Graph& graph);

/// For every plan of the set:
///  - a slot is written before it is read, freed once, and nothing is live at the end;
///  - every send has one receive of the same key and the reverse; the sends and receives of a
///    directed channel come in one order;
///  - the set ends under blocking sends and collectives with bounded streams (no deadlock);
///  - every parameter is in one bucket and each bucket is updated once on every rank, after Commit;
///  - what a microbatch saved in a forward is read by its backward, chunk by chunk.
Result<void> verify(const PlanSet& plans, const ModelSpec& model);

} // namespace piper::ir
