// What a session tells its user: plain figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper {

struct StepResult {
  int64_t iteration = 0;
  double loss = 0; ///< mean over the global batch, before the update
  double grad_norm = 0;
  /// From the end of what came before it (an iteration, an evaluation, a change, or the call that
  /// asked for it) to its own end.
  double seconds = 0;
  double tokens_per_second = 0; ///< elements of the first model input per second
  uint32_t epoch = 0;
  std::optional<double> eval_loss; ///< where this iteration was followed by an evaluation
};

/// A committed change of strategy.
struct Change {
  std::string from, to;  ///< names of the strategies
  uint32_t epoch = 0;    ///< the new one
  int64_t iteration = 0; ///< the first iteration under it
  double compile_seconds = 0;
  double prepare_seconds = 0;
  double pause_seconds = 0; ///< end of the last iteration before to start of the first after
  uint64_t bytes_moved = 0; ///< between devices
};

struct DeviceReport {
  uint32_t device = 0;
  std::string process; ///< "main", "worker 1 (pid 123)"
  std::string role;    ///< in the current epoch; "" if idle
  int64_t peak_bytes = 0;
  int64_t offloaded_bytes = 0; ///< in another memory, at most
  double busy_seconds = 0;     ///< since the session started
  double idle_seconds = 0;
  uint64_t bytes_sent = 0;
};

/// A change that was asked for and is not made yet.
struct WaitingChange {
  std::string to;
  std::optional<int64_t> at; ///< the iteration it waits for; none: the next boundary
};

struct Metrics {
  int64_t iterations = 0;
  double loss = 0;
  uint32_t epoch = 0;
  std::string strategy;
  std::vector<Change> changes;
  std::vector<WaitingChange> waiting; ///< in the order in which they will be made
  std::vector<DeviceReport> devices;
};

} // namespace piper
