// What moves between two processes, and how fast.
#pragma once

#include "ir/result.h"
#include "transport/ucx/fabric.h"

#include <chrono>

namespace piper::cli {

/// Measures between this process and a fork of it (so no other thread may run yet), and prints a
/// row an operation and size.
Result<void> bench_transport(transport::UcxMode mode, std::chrono::milliseconds per_row);

} // namespace piper::cli
