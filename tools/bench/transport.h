// What moves between two processes, and how fast.
#pragma once

#include "ir/result.h"
#include "transport/bench.h"
#include "transport/ucx/fabric.h"

#include <chrono>
#include <vector>

namespace piper::cli {

/// Measures between this process and a fork of it, so no other thread may run yet.
Result<std::vector<transport::BenchRow>> measure_transport(transport::UcxMode mode,
                                                           std::chrono::milliseconds per_row);
/// Prints a row an operation and size of that.
Result<void> bench_transport(transport::UcxMode mode, std::chrono::milliseconds per_row);

} // namespace piper::cli
