// BoundInstruction: an instruction of a plan with everything it needs resolved to pointers. Running
// one looks nothing up, and allocates nothing but the tensors it makes.
#pragma once

#include "actors/executor/stream.h"
#include "compiler/frontend/autograd.h"
#include "compiler/frontend/memory.h"
#include "transport/transport.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace piper::executor {

/// What the instructions of a running iteration share, and its outcome. One per device.
class RunState {
public:
  RunState(transport::Endpoint& endpoint, std::chrono::milliseconds deadline)
      : endpoint(endpoint), deadline(deadline) {}

  void begin(int64_t number, size_t loss_count);
  /// The iteration fails with the first error told. Everything that waits on the transport wakes;
  /// what has not started is skipped, unless the iteration was committed before.
  void fail(Error error);
  /// The same, but what was committed goes on.
  void cancel(Error reason);
  /// From here on the iteration is kept. False if it has failed.
  bool commit();
  bool failed() const { return phase_.load(std::memory_order_acquire) == Phase::Failed; }
  bool committed() const { return phase_.load(std::memory_order_acquire) == Phase::Committed; }
  std::optional<Error> error() const;

  transport::Deadline wait_until() const { return Clock::now() + deadline; }

  transport::Endpoint& endpoint;
  const std::chrono::milliseconds deadline; ///< of each wait
  int64_t iteration = 0;
  std::vector<double> losses; ///< by microbatch; of Loss instructions
  double grad_norm = 0;
  double grad_factor = 1;                  ///< of clipping
  std::atomic<bool> updated_early = false; ///< an update was made before the commit

private:
  enum class Phase : uint8_t { Running, Failed, Committed };
  std::atomic<Phase> phase_{Phase::Running};
  mutable std::mutex mutex_;
  std::optional<Error> error_;
};

class BoundInstruction : public Task {
public:
  void run() noexcept final;
  void overdue(const Event& event) noexcept final;
  /// Drops the scratch of a run that did not end well.
  virtual void clear() noexcept {}

  // Set by the binder.
  RunState* state = nullptr;
  Holder* holder = nullptr;                                ///< of what it allocates
  std::string where;                                       ///< "device 1, F attn3..mlp3 @2"
  std::atomic<const BoundInstruction*>* current = nullptr; ///< what its stream runs
  Clock::duration* waited =
      nullptr; ///< of its stream, if that computes: for waits on the transport
  std::vector<std::pair<const Event*, std::string>> waits; ///< whose completions it waits for
  std::vector<at::Tensor*> free_tensors;                   ///< dropped when it is done
  std::vector<ChunkContext*> free_contexts;

  // Of the last run; its stream's while that goes on.
  Clock::time_point started{}, ended{};

protected:
  /// May throw. An error without a place gets `where`.
  virtual Result<void> execute() = 0;
};

} // namespace piper::executor
