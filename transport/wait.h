// Event: one thread waits for another, with a deadline, after a short spin.
#pragma once

#include "transport/transport.h"

#include <atomic>

namespace piper::transport {

/// How long a wait polls before it sleeps. Longer takes a core from those who could use it.
inline constexpr std::chrono::nanoseconds kDefaultSpin{20'000};

/// Set once, waited for by one thread. May live on the waiter's stack: `set` touches nothing of it
/// once the waiter can have seen it.
class Event {
public:
  bool is_set() const { return state_.load(std::memory_order_acquire) == kSet; }
  void set();
  /// True once set; false if the deadline passed first. Yields for at most `spin`, then sleeps.
  bool wait_until(Deadline deadline, std::chrono::nanoseconds spin);

private:
  enum State : uint32_t { kClear, kSet, kSleeping };
  std::atomic<uint32_t> state_{kClear};
};

} // namespace piper::transport
