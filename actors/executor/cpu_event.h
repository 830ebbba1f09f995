// CpuEvent: a counter that one thread advances and others wait for. Each record of the event is a
// generation, so nothing has to be reset between iterations.
#pragma once

#include "actors/executor/stream.h"

#include <atomic>
#include <cstdint>

namespace piper::executor {

class CpuEvent final : public Event {
public:
  /// The generation that the next `set` will reach, and the latest one given out. Issuing thread.
  uint32_t next() { return ++issued_; }
  uint32_t issued() const { return issued_; }

  bool reached(uint32_t generation) const {
    return static_cast<int32_t>(done_.load(std::memory_order_acquire) - generation) >= 0;
  }
  uint32_t value() const { return done_.load(std::memory_order_acquire); }

  /// Reaches `generation` and wakes who waits for it.
  void set(uint32_t generation);
  /// Waits until `generation` is reached: spins for some microseconds if asked to, then sleeps.
  /// False if that takes longer than `limit`.
  bool wait(uint32_t generation, Clock::duration limit, bool spin);

private:
  uint32_t issued_ = 0;
  std::atomic<uint32_t> done_{0};
  std::atomic<uint32_t> sleepers_{0};
};

/// No limit on a wait.
inline constexpr Clock::duration kForever = Clock::duration::max();

} // namespace piper::executor
