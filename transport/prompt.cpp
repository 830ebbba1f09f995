#include "transport/prompt.h"

#include <cstdint>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace piper::transport {

namespace {
/// As in linux/sched/types.h, which glibc's sched.h does not go together with.
struct SchedulerAttributes {
  uint32_t size = sizeof(SchedulerAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0; ///< nanoseconds; of SCHED_OTHER the slice
  uint64_t deadline = 0, period = 0;
};
constexpr uint64_t kShortestSlice = 100'000;
} // namespace

void wake_promptly() {
  SchedulerAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0 ||
      attributes.policy != SCHED_OTHER)
    return; // who runs us has chosen another scheduler, and knows better
  attributes.size = sizeof attributes;
  attributes.runtime = kShortestSlice;
  syscall(SYS_sched_setattr, 0, &attributes, 0); // a refusal leaves things as they were
}

} // namespace piper::transport
