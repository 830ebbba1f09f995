// The interpreter: issues a bound plan to its streams and waits for the outcome. Knows neither
// strategies nor what the instructions do.
#pragma once

#include "actors/executor/bound_plan.h"

#include <mutex>
#include <optional>

namespace piper::executor {

/// Threads: one `run` at a time; `abort` from anywhere.
class Interpreter {
public:
  Interpreter(transport::Endpoint& endpoint, const DeviceOptions& options)
      : options_(options), state_(endpoint, options.deadline) {}

  /// Runs the plan once. After an error nothing is left of the iteration: no tensor, no gradient;
  /// and every later run fails with the same error until `recover`. Updates that did not wait for
  /// the commit do stay: the state is then torn, and nothing runs on it any more.
  Result<IterationResult> run(const std::shared_ptr<BoundPlan>& plan, int64_t iteration);

  /// Ends a running plan with `reason`, or keeps the next one from starting.
  void abort(Error reason);
  void recover(ir::Epoch oldest);

  RunState& state() { return state_; }

private:
  void issue(BoundPlan& plan);
  Result<void> drain(BoundPlan& plan);
  IterationResult collect(const BoundPlan& plan) const;

  const DeviceOptions& options_;
  RunState state_;
  std::shared_ptr<BoundPlan> stuck_; ///< a plan with an instruction that did not come back

  std::mutex mutex_; ///< of the two below
  bool running_ = false;
  std::optional<Error> aborted_;
};

} // namespace piper::executor
