// The workers of `--processes`.
#pragma once

#include "actors/session.h"
#include "tools/piper/processes.h"

namespace piper::cli {

/// Makes the session of `options` wait for `processes` - 1 workers more than it does anyway, and
/// start them once it listens. `workers` must outlive the session, which says goodbye to them.
void start_workers(uint32_t processes, SessionOptions& options, Processes& workers);

} // namespace piper::cli
