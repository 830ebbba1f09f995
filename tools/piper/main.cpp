#include "tools/piper/main.h"

#include "tools/piper/verbs.h"

#include <fmt/format.h>

#include <cstdio>

namespace piper {

int cli::fail(const Error& error) {
  fmt::print(stderr, "piper: {}\n", error.to_string());
  return error.kind == ErrorKind::User ? kWrongInput : kFailed;
}

int main(int argc, char** argv, const Registry& registry) {
  CLI::App program("Trains a model under a declared strategy, and changes the strategy mid-run.",
                   "piper");
  program.set_version_flag("--version", PIPER_VERSION);
  program.footer("Exit codes: 0 done, 1 failed, 2 the input was wrong.");

  int exit_code = cli::kDone;
  cli::add_train(program, registry, exit_code);
  cli::add_compile(program, registry, exit_code);
  cli::add_check(program, registry, exit_code);
  cli::add_ctl(program, exit_code);
  cli::add_worker(program, registry, exit_code);
  cli::add_bench(program, registry, exit_code);
  cli::add_simulate(program, registry, exit_code);
  cli::add_profile(program, registry, exit_code);
  try {
    program.parse(argc, argv);
    if (program.get_subcommands().empty()) {
      fmt::print(stderr, "{}", program.help());
      return cli::kWrongInput;
    }
  } catch (const CLI::ParseError& error) {
    // Prints help, the version, or what was wrong.
    return program.exit(error) == 0 ? cli::kDone : cli::kWrongInput;
  } catch (const std::exception& error) { // of a library below: memory, a file system
    return cli::fail(internal_error(error.what()));
  }
  return exit_code;
}

} // namespace piper
