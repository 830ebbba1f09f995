// The `piper` program as a library piece: a user's own binary gets the same verbs for its own
// models by calling `piper::main` from its `main`.
#pragma once

#include "actors/session.h"

namespace piper {

/// Runs the command line on the models of `registry`. Returns the exit code: 0 done, 1 failed,
/// 2 the user's input was wrong. Writes to the standard streams, and while it trains it turns
/// SIGINT and SIGTERM into an early end; otherwise the process is left as it was. `--processes`
/// starts this same binary with the verb `worker`, so `main` must come here with it.
int main(int argc, char** argv, const Registry& registry);

} // namespace piper
