// What a run did: collected step by step, written as one JSON object, and summed up as a table.
#pragma once

#include "actors/session.h"

#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

/// Share of the time in which the devices' compute streams waited.
double bubble(double busy_seconds, double idle_seconds);

class Report {
public:
  void add(const StepResult& step) { steps_.push_back(step); }
  /// To be called at the end of each epoch, in order, with the figures so far: the bubble of an
  /// epoch is the difference of two of them.
  void end_epoch(Metrics metrics) { ends_.push_back(std::move(metrics)); }
  void set_digest(std::string digest) { digest_ = std::move(digest); }
  void set_error(const Error& error) { error_ = error.to_string(); }

  /// The JSON object of `--report`:
  ///   iterations         [{iteration, loss, tokens_per_second, seconds, epoch, eval_loss?}]
  ///   changes            [{from, to, epoch, iteration, compile_seconds, prepare_seconds,
  ///                        pause_seconds, bytes_moved}]
  ///   devices            [{device, process, peak_bytes, busy_seconds, idle_seconds, bytes_sent}]
  ///   parameters_digest  hash of all parameters in model order; absent if the run failed
  ///   error              why the run failed; absent if it did not
  std::string to_json() const;
  Result<void> write(const std::string& path) const;
  /// A row a strategy: iterations, loss, speed, bubble; then the changes and the losses around
  /// them.
  std::string to_table() const;

private:
  std::vector<StepResult> steps_;
  std::vector<Metrics> ends_; ///< of each epoch
  std::string digest_;
  std::optional<std::string> error_;
};

} // namespace piper::cli
