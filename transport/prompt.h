// Threads that sleep much and must run soon once woken, beside others that compute all the time.
#pragma once

namespace piper::transport {

/// Asks the kernel to let the calling thread preempt threads that compute when it wakes. It asks
/// for the shortest slice of the fair scheduler (sched_setattr(2), Linux 6.12 on), which takes no
/// privilege and no larger share of a core; other kernels ignore it. Without it a thread that wakes
/// while every core computes waits for the next tick: 2 to 4 milliseconds.
void wake_promptly();

} // namespace piper::transport
