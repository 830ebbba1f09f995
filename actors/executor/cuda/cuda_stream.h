// Streams and events on CUDA. Checked by the compiler where the toolkit's headers are; not part of
// the program until the executor has a CUDA device to run it on.
#pragma once

#include "actors/executor/stream.h"

#include <cuda_runtime_api.h>

#include <vector>

namespace piper::executor {

class CudaEvent final : public Event {
public:
  CudaEvent();
  ~CudaEvent() override;
  cudaEvent_t get() const { return event_; }

private:
  cudaEvent_t event_ = nullptr;
};

/// CUDA enqueues by itself and starts at once, so `launch` has nothing to start. The first error of
/// a call is kept and told by `synchronize`.
class CudaStream final : public Stream {
public:
  /// `make_current` tells LibTorch to enqueue this thread's kernels on a stream.
  CudaStream(std::string name, void (*make_current)(cudaStream_t));
  ~CudaStream() override;

  const std::string& name() const override { return name_; }
  void reserve(size_t operations) override;
  void enqueue(Task& task) override;
  void record(Event& event) override;
  void wait(Event& event, Task& task) override;
  void launch() override;
  Result<void> synchronize(Clock::duration limit) override;
  StreamTimes times() override;

private:
  void keep(cudaError_t status);

  std::string name_;
  void (*make_current_)(cudaStream_t);
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr; ///< around what was enqueued since synchronize
  std::vector<cudaEvent_t> marks_;              ///< two for each wait: before and after
  size_t waits_ = 0;
  bool started_ = false;
  Clock::time_point started_at_;
  cudaError_t status_ = cudaSuccess;
};

} // namespace piper::executor
