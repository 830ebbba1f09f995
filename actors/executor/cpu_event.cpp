#include "actors/executor/cpu_event.h"

#include <cerrno>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace piper::executor {
namespace {

constexpr int kSpins = 400; // of some 10 to 50 ns each

void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
uint32_t* address(std::atomic<uint32_t>& word) {
  return reinterpret_cast<uint32_t*>(&word);
}

/// Sleeps while `word` is `seen`, until woken or until `deadline` (of CLOCK_MONOTONIC, which is
/// what steady_clock reads). False at the deadline.
bool futex_wait(std::atomic<uint32_t>& word, uint32_t seen, const timespec* deadline) {
  long rc = syscall(SYS_futex, address(word), FUTEX_WAIT_BITSET_PRIVATE, seen, deadline, nullptr,
                    FUTEX_BITSET_MATCH_ANY);
  return rc == 0 || errno != ETIMEDOUT;
}

timespec to_timespec(Clock::time_point time) {
  auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

} // namespace

void CpuEvent::set(uint32_t generation) {
  // Sequentially consistent, as is wait's side: either the sleeper sees the new value or we see the
  // sleeper.
  done_.store(generation, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, address(done_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

bool CpuEvent::wait(uint32_t generation, Clock::duration limit, bool spin) {
  for (int i = spin ? kSpins : 0; i > 0; --i) {
    if (reached(generation))
      return true;
    pause_cpu();
  }
  timespec deadline{};
  if (limit != kForever)
    deadline = to_timespec(Clock::now() + limit);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  bool in_time = true;
  for (;;) {
    uint32_t seen = done_.load(std::memory_order_seq_cst);
    if (static_cast<int32_t>(seen - generation) >= 0)
      break;
    if (!in_time)
      break;
    in_time = futex_wait(done_, seen, limit == kForever ? nullptr : &deadline);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  return reached(generation);
}

} // namespace piper::executor
