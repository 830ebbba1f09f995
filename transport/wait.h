// Event: one thread waits for another, with a deadline, after a short spin.
#pragma once

#include "transport/transport.h"

#include <atomic>

namespace piper::transport {

/// How long a wait polls before it sleeps. Longer takes a core from those who could use it.
inline constexpr std::chrono::nanoseconds kDefaultSpin{20'000};

/// How the waits of a fabric poll before they sleep. Threads may share one.
class Spinner {
public:
  explicit Spinner(std::chrono::nanoseconds limit) : limit_(limit) {}
  /// For how long to poll, from now; zero while cores are short.
  std::chrono::nanoseconds limit() const {
    return Clock::now() < crowded_until_.load(std::memory_order_relaxed)
               ? std::chrono::nanoseconds(0)
               : limit_;
  }
  /// Lets another thread run. If one did so for long, cores are short: who yields then waits behind
  /// all who compute, and who sleeps is woken at once.
  void yield();

private:
  const std::chrono::nanoseconds limit_;
  std::atomic<Deadline> crowded_until_{Deadline::min()};
};

/// Set once, waited for by one thread. May live on the waiter's stack: `set` touches nothing of it
/// once the waiter can have seen it.
class Event {
public:
  bool is_set() const { return state_.load(std::memory_order_acquire) == kSet; }
  void set();
  /// True once set; false if the deadline passed first. Polls for a while, then sleeps.
  bool wait_until(Deadline deadline, Spinner& spinner);
  /// The same without polling.
  bool sleep_until(Deadline deadline);

private:
  enum State : uint32_t { kClear, kSet, kSleeping };
  std::atomic<uint32_t> state_{kClear};
};

} // namespace piper::transport
