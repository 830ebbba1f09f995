// The verbs of the program, a file each. `add_X` declares the verb with its flags; when the command
// line names it, its exit code is stored in `exit_code`.
#pragma once

#include "actors/session.h"

#include <CLI/CLI.hpp>

namespace piper::cli {

inline constexpr int kDone = 0, kFailed = 1, kWrongInput = 2;

/// Prints the error on stderr; the exit code for it.
int fail(const Error& error);

void add_train(CLI::App& program, const Registry& registry, int& exit_code);
void add_compile(CLI::App& program, const Registry& registry, int& exit_code);
void add_check(CLI::App& program, const Registry& registry, int& exit_code);
void add_ctl(CLI::App& program, int& exit_code);
void add_worker(CLI::App& program, const Registry& registry, int& exit_code);
void add_bench(CLI::App& program, const Registry& registry, int& exit_code);
void add_simulate(CLI::App& program, const Registry& registry, int& exit_code);
void add_profile(CLI::App& program, const Registry& registry, int& exit_code);

} // namespace piper::cli
