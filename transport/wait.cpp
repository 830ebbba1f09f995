#include "transport/wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace piper::transport {
namespace {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline) {
  timespec at{};
  const bool limited = deadline != Deadline::max();
  if (limited) {
    auto since = deadline.time_since_epoch();
    auto seconds = std::chrono::floor<std::chrono::seconds>(since);
    at.tv_sec = seconds.count();
    at.tv_nsec = std::chrono::nanoseconds(since - seconds).count();
  }
  // The bitset form takes an absolute time on the monotonic clock, which is steady_clock's.
  syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE, expected, limited ? &at : nullptr, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

} // namespace

void Event::set() {
  if (state_.exchange(kSet, std::memory_order_acq_rel) == kSleeping)
    syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool Event::wait_until(Deadline deadline, std::chrono::nanoseconds spin) {
  if (is_set())
    return true;
  if (spin.count() > 0) {
    const auto end = std::min(deadline, Clock::now() + spin);
    do {
      std::this_thread::yield();
      if (is_set())
        return true;
    } while (Clock::now() < end);
  }
  uint32_t expected = kClear;
  state_.compare_exchange_strong(expected, kSleeping, std::memory_order_acq_rel);
  while (!is_set()) {
    if (Clock::now() >= deadline)
      return false;
    futex_wait(state_, kSleeping, deadline);
  }
  return true;
}

} // namespace piper::transport
