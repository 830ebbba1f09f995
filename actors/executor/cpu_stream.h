// A stream on the CPU: a worker thread that takes operations from a ring in order.
#pragma once

#include "actors/executor/cpu_event.h"
#include "actors/executor/stream.h"

#include <thread>
#include <vector>

namespace piper::executor {

struct CpuStreamOptions {
  Clock::duration deadline = std::chrono::seconds(60); ///< of each wait for an event
  bool spin = true;                                    ///< briefly, before a wait sleeps
  int threads = 1;                                     ///< of LibTorch's operators
  bool compute = true; ///< false: it sleeps much, and is to run soon when it wakes
};

class CpuStream final : public Stream {
public:
  CpuStream(std::string name, CpuStreamOptions options);
  ~CpuStream() override; ///< finishes what was launched, then ends the thread

  const std::string& name() const override { return name_; }
  void reserve(size_t operations) override;
  void enqueue(Task& task) override;
  void record(Event& event) override;
  void wait(Event& event, Task& task) override;
  void launch() override;
  Result<void> synchronize(Clock::duration limit) override;
  StreamTimes times() override { return times_; }

private:
  struct Operation {
    Task* task = nullptr;
    CpuEvent* event = nullptr; ///< to record (no task) or to wait for; none: run the task
    uint32_t generation = 0;   ///< of the event
  };
  void push(const Operation& operation);
  void work();
  void perform(const Operation& operation);

  std::string name_;
  CpuStreamOptions options_;
  std::vector<Operation> ring_;  ///< a power of two; positions wrap
  uint32_t tail_ = 0;            ///< operations pushed
  CpuEvent launched_, finished_; ///< generations are positions in the ring
  StreamTimes times_;            ///< the worker's until `finished_`
  std::thread thread_;
};

class CpuBackend final : public StreamBackend {
public:
  explicit CpuBackend(CpuStreamOptions options) : options_(options) {}
  /// Streams that don't compute have one thread.
  std::unique_ptr<Stream> make_stream(std::string name, bool compute) override;
  std::unique_ptr<Event> make_event() override;

private:
  CpuStreamOptions options_;
};

} // namespace piper::executor
