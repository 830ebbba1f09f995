#include "actors/control.h"
#include "tools/piper/job.h"
#include "tools/piper/verbs.h"

#include <cstdio>
#include <fstream>
#include <iterator>

namespace piper::cli {

namespace {

struct CtlFlags {
  std::string address, strategy;
  int64_t microbatches = 0;
};

/// Prints the session's answer, a JSON object.
int ask(const CtlFlags& flags, const std::string& verb, const std::string& body = {},
        const std::string& name = {}) {
  const auto answer = control_request(flags.address, verb, body, name);
  if (!answer.ok())
    return fail(answer.error());
  std::puts(answer->c_str());
  return kDone;
}

} // namespace

void add_ctl(CLI::App& program, int& exit_code) {
  auto* verb = program.add_subcommand("ctl", "Watch and steer a session that has --control");
  auto flags = std::make_shared<CtlFlags>();
  verb->add_option("--connect", flags->address, "HOST:PORT of the session's --control")->required();
  verb->require_subcommand(1);

  verb->add_subcommand("status", "Print what it does, as JSON")->callback([flags, &exit_code] {
    exit_code = ask(*flags, "status");
  });
  verb->add_subcommand("timeline",
                       "Print what each device did in the last iteration, for chrome://tracing or "
                       "ui.perfetto.dev")
      ->callback([flags, &exit_code] { exit_code = ask(*flags, "timeline"); });
  verb->add_subcommand("stop", "End it after the current iteration")->callback([flags, &exit_code] {
    exit_code = ask(*flags, "stop");
  });
  auto* apply = verb->add_subcommand("apply", "Change the strategy; returns when it has changed");
  apply->add_option("FILE", flags->strategy, "JSON file, or names of builders as in --strategy")
      ->required();
  apply->add_option("--microbatches", flags->microbatches, "Of the whole batch, for named builders")
      ->check(CLI::PositiveNumber);
  apply->callback([flags, &exit_code] {
    // Read here first: a mistake in the file needs no session to be told.
    const auto strategy = read_strategy(flags->strategy, flags->microbatches, "apply");
    if (!strategy.ok()) {
      exit_code = fail(strategy.error());
      return;
    }
    // A file goes as it is, so that what the session says of a directive names its line.
    std::ifstream file(flags->strategy);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    exit_code = ask(*flags, "apply", text.empty() ? strategy->to_json() : text, strategy->name);
  });
}

} // namespace piper::cli
