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

void Spinner::yield() {
  constexpr std::chrono::microseconds kLong{200}, kCrowded{20'000};
  const auto begin = Clock::now();
  std::this_thread::yield();
  const auto end = Clock::now();
  if (end - begin > kLong)
    crowded_until_.store(end + kCrowded, std::memory_order_relaxed);
}

bool Event::wait_until(Deadline deadline, Spinner& spinner) {
  const auto begin = Clock::now();
  while (!is_set() && Clock::now() < std::min(deadline, begin + spinner.limit()))
    spinner.yield();
  return sleep_until(deadline);
}

bool Event::sleep_until(Deadline deadline) {
  if (is_set())
    return true;
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
