#include "actors/executor/cuda/cuda_stream.h"

#include <thread>
#include <utility>

namespace piper::executor {
namespace {

Clock::duration between(cudaEvent_t from, cudaEvent_t to) {
  float ms = 0;
  cudaEventElapsedTime(&ms, from, to);
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<float, std::milli>(ms));
}

void run_on_host(void* task) {
  static_cast<Task*>(task)->run();
}

} // namespace

CudaEvent::CudaEvent() {
  cudaEventCreateWithFlags(&event_, cudaEventDisableTiming);
}
CudaEvent::~CudaEvent() {
  cudaEventDestroy(event_);
}

CudaStream::CudaStream(std::string name, void (*make_current)(cudaStream_t))
    : name_(std::move(name)), make_current_(make_current) {
  keep(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  keep(cudaEventCreate(&start_));
  keep(cudaEventCreate(&end_));
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(stream_);
  for (cudaEvent_t mark : marks_)
    cudaEventDestroy(mark);
  cudaEventDestroy(start_);
  cudaEventDestroy(end_);
  cudaStreamDestroy(stream_);
}

void CudaStream::keep(cudaError_t status) {
  if (status_ == cudaSuccess)
    status_ = status;
}

void CudaStream::reserve(size_t operations) {
  // At most every operation is a wait.
  while (marks_.size() < 2 * operations)
    keep(cudaEventCreate(&marks_.emplace_back()));
  waits_ = 0;
  started_ = false;
}

void CudaStream::enqueue(Task& task) {
  if (!std::exchange(started_, true)) {
    started_at_ = Clock::now();
    keep(cudaEventRecord(start_, stream_));
  }
  if (task.on_host()) {
    keep(cudaLaunchHostFunc(stream_, &run_on_host, &task));
  } else {
    make_current_(stream_);
    task.run();
  }
}

void CudaStream::record(Event& event) {
  keep(cudaEventRecord(static_cast<CudaEvent&>(event).get(), stream_));
}

void CudaStream::wait(Event& event, Task&) {
  keep(cudaEventRecord(marks_[2 * waits_], stream_));
  keep(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).get(), 0));
  keep(cudaEventRecord(marks_[2 * waits_ + 1], stream_));
  ++waits_;
}

void CudaStream::launch() {
  keep(cudaEventRecord(end_, stream_));
}

Result<void> CudaStream::synchronize(Clock::duration limit) {
  const auto deadline = Clock::now() + limit;
  cudaError_t status;
  while ((status = cudaStreamQuery(stream_)) == cudaErrorNotReady) {
    if (Clock::now() > deadline)
      return Error{ErrorKind::Timeout, "the stream is still busy", "stream " + name_, ""};
    std::this_thread::yield();
  }
  keep(status);
  if (status_ != cudaSuccess)
    return Error{ErrorKind::DeviceLost, cudaGetErrorString(status_), "stream " + name_, ""};
  return {};
}

StreamTimes CudaStream::times() {
  StreamTimes times{started_at_, started_at_ + between(start_, end_)};
  for (size_t w = 0; w < waits_; ++w)
    times.waited += between(marks_[2 * w], marks_[2 * w + 1]);
  return times;
}

} // namespace piper::executor
