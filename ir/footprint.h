// What the IR takes of the heap.
#pragma once

#include "ir/graph.h"
#include "ir/plan.h"

#include <cstddef>

namespace piper::ir {

/// Bytes that the containers hold, by their capacity. Leaves out what the allocator adds, and of a
/// graph the model and the strategy that it is made for. Looks at every node.
size_t bytes_of(const Graph& graph);
size_t bytes_of(const PlanSet& plans);

} // namespace piper::ir
