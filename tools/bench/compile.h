// What compiling costs, by the size of the graph.
#pragma once

#include "ir/result.h"

#include <cstdint>

namespace piper::cli {

/// Compiles a chain of calls under 1F1B on 8 stages, with the calls of a stage fused and not, for
/// graphs of 10^3 nodes to `largest`. Prints for each seconds and microseconds a node, bytes a node
/// of the graph and the plans in the end, and the passes that take longest.
Result<void> bench_compile(int64_t largest);

} // namespace piper::cli
