// Streams and events: work in order on each stream, joined across streams by events. A CPU stream
// is a worker thread (cpu_stream.h), a CUDA stream is a cudaStream_t (cuda/cuda_stream.h); both
// have CUDA's semantics, so the interpreter doesn't know which it drives.
//
// Threads: one thread at a time issues to the streams of a device (reserve, enqueue, record, wait,
// launch, synchronize).
#pragma once

#include "ir/result.h"

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace piper::executor {

using Clock = std::chrono::steady_clock;

/// A point in a stream's work that other streams can wait for. Made by the backend of the streams
/// that use it; recorded anew in every iteration.
class Event {
public:
  virtual ~Event() = default;
};

/// A piece of work. Streams don't own tasks; a task outlives the `synchronize` after its `enqueue`.
class Task {
public:
  virtual ~Task() = default;
  /// On the CPU: does the work, on the stream's thread. On CUDA: called by the issuing thread with
  /// the stream as LibTorch's current one, so that its kernels go there; or, where `on_host`, by
  /// the stream itself when its turn comes.
  virtual void run() noexcept = 0;
  /// The wait for `event` before this task passed its deadline; the stream goes on after this.
  virtual void overdue(const Event& event) noexcept = 0;
  /// Whether it blocks a host thread (the transport) and launches no kernels.
  virtual bool on_host() const noexcept { return false; }
};

/// What a stream did between `launch` and the end of its last task.
struct StreamTimes {
  Clock::time_point start, end;
  Clock::duration waited{}; ///< for events, of end - start
};

class Stream {
public:
  virtual ~Stream() = default;
  virtual const std::string& name() const = 0;

  /// Makes room for that many operations between two `synchronize`. Only while nothing is pending.
  virtual void reserve(size_t operations) = 0;

  // None of these waits or allocates.
  virtual void enqueue(Task& task) = 0;
  /// `event` is reached once everything enqueued so far is done.
  virtual void record(Event& event) = 0;
  /// What is enqueued later starts after the latest `record` of `event` that was issued before this
  /// call, on whatever stream. `task` is the one that needs it.
  virtual void wait(Event& event, Task& task) = 0;
  /// What has been enqueued may start.
  virtual void launch() = 0;

  /// Waits until everything launched is done; a Timeout if that takes longer than `limit`.
  virtual Result<void> synchronize(Clock::duration limit) = 0;
  /// Of the work since the last `launch`; after `synchronize`.
  virtual StreamTimes times() = 0;
};

/// Makes the streams and events of one kind of device.
class StreamBackend {
public:
  virtual ~StreamBackend() = default;
  /// `compute`: it runs kernels, not only the transport.
  virtual std::unique_ptr<Stream> make_stream(std::string name, bool compute) = 0;
  virtual std::unique_ptr<Event> make_event() = 0;
};

} // namespace piper::executor
