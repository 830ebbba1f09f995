// A thread that does one piece of work after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace piper::actors {

class SerialThread {
public:
  SerialThread() = default;
  /// Drops what has not begun, and waits for what has.
  ~SerialThread() { stop(); }
  /// The thread starts with the first piece.
  void post(std::function<void()> work);
  void stop();

private:
  void loop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

/// Threads for work that waits: as many as there is such work at once, kept for the next.
class WorkThreads {
public:
  /// Waits for all work, begun or not.
  ~WorkThreads();
  void post(std::function<void()> work);

private:
  void loop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

} // namespace piper::actors
