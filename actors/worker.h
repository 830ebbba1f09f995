// A worker's inside. `run_worker` in session.h is what users call.
#pragma once

#include "actors/session.h"

#include <string>

namespace piper::actors {

/// Of this build; workers of another one are refused.
const char* version();

/// run_worker with another version than the build's, for tests of the refusal.
Result<void> run_worker_as(const std::string& version, const Registry& registry,
                           const WorkerOptions& options);

} // namespace piper::actors
