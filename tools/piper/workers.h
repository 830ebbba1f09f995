// The workers of `--processes`.
#pragma once

#include "actors/session.h"
#include "tools/piper/processes.h"

namespace piper::cli {

/// Starts `processes` - 1 workers that will join the session of `options`, adds them to those that
/// it waits for anyway, and settles where they join.
Result<void> start_workers(uint32_t processes, SessionOptions& options, Processes& workers);

} // namespace piper::cli
