// DeviceRunner: a device and the two threads that work for it, one for iterations and one that
// prepares beside them. A plain type; the device actor routes messages to it.
#pragma once

#include "actors/executor/device.h"
#include "actors/plan_fragments.h"
#include "actors/protocol.h"
#include "actors/threads.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace piper::actors {

/// Called from the runner's threads.
struct RunnerCallbacks {
  std::function<void(PrepareReport)> prepared;
  std::function<void(OpReport)> done;
  /// All parameters by name, on the device that gathers them (0). May be empty elsewhere.
  std::function<void(std::map<std::string, at::Tensor>)> gathered;
};

class DeviceRunner {
public:
  /// `endpoint` outlives the runner.
  DeviceRunner(executor::DeviceOptions options, std::shared_ptr<const Model> model,
               transport::Endpoint& endpoint, RunnerCallbacks callbacks);
  /// Aborts what runs and waits for it to end.
  ~DeviceRunner();

  // From one thread at a time. Each returns at once; what it asks for happens in order, operations
  // on one thread, preparations on another.
  void prepare(PrepareRequest request);
  void discard(Epoch epoch);
  void enqueue(Op op);
  /// Ends the running operation and refuses those after it with `reason`, until Recover.
  void abort(Error reason);

private:
  void do_prepare(const PrepareRequest& request);
  Result<void> try_prepare(const PrepareRequest& request);
  void do_op(const Op& op);
  Result<void> try_op(const Op& op, OpReport& report);
  Result<void> gather(const Op& op);

  const executor::DeviceOptions options_;
  const std::shared_ptr<const Model> model_;
  transport::Endpoint& endpoint_;
  const RunnerCallbacks callbacks_;
  executor::Device device_;

  std::mutex state_mutex_; ///< held by what must not run beside a preparation
  FragmentStore fragments_;
  std::map<Epoch, std::vector<Manifest>> manifests_;

  std::mutex refuse_mutex_;
  std::optional<Error> refuse_; ///< why operations are not done until Recover

  SerialThread prepare_thread_, run_thread_; // last: stopped before the rest goes
};

} // namespace piper::actors
