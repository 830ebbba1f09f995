// What compiling costs, by the size of the graph.
#pragma once

#include "ir/result.h"

#include <cstdint>

namespace piper::cli {

/// Compiles a chain of calls under 1F1B on 8 stages for graphs of 10^3 nodes to `largest`, and
/// prints seconds and microseconds a node for each, the passes that take longest first.
Result<void> bench_compile(int64_t largest);

} // namespace piper::cli
