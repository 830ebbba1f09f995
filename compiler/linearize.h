// One order for the whole graph, from which every device's issue order is read off.
#pragma once

#include "ir/graph.h"

#include <vector>

namespace piper::compiler {

/// A topological order of the acyclic graph behind `index`, by list scheduling on declared costs:
/// the node that could start first comes first; of equals a backward before a forward, then the
/// lower microbatch. A Recv directly follows its Send, so that every device's part of the order
/// runs to the end also where sends block, and both ends of a channel see one order. An Input comes
/// right before its first reader. Linear in the graph but for the logarithm of what is ready at
/// once.
std::vector<const ir::Node*> linearize(const ir::Graph& graph, const ir::GraphIndex& index);

} // namespace piper::compiler
