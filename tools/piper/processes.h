// Child processes that run this same program and never outlive it.
#pragma once

#include "ir/result.h"

#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

namespace piper::cli {

/// How a process ended: "exited with 1", "was killed by signal 9".
std::string describe_exit(int wait_status);

/// Children of one run. Not thread-safe.
///
/// Linux kills a child when the *thread* that started it ends, so start them from one that lasts
/// as long as they should. Each gets a process group of its own (a Ctrl-C in the terminal is ours
/// to handle) and is reaped as soon as it ends: others must not take a zombie for a live peer.
class Processes {
public:
  Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  /// Gives the children a moment to end by themselves, then kills and reaps them.
  ~Processes();

  /// Starts this binary with `arguments`; its standard output goes to our standard error.
  Result<void> start_self(const std::vector<std::string>& arguments);

private:
  struct Child;
  std::vector<std::unique_ptr<Child>> children_;
};

/// Runs this binary with `arguments`, its standard output thrown away, and waits for it. An error
/// names how it ended if that was not with 0.
Result<void> run_self(const std::vector<std::string>& arguments);
/// The same with another program, found on the path.
Result<void> run_program(const std::vector<std::string>& command);

} // namespace piper::cli
