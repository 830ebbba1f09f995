// That the kernel was asked, where it listens; how soon threads wake is not for a test.
#include "transport/prompt.h"

#include <cstdint>
#include <sched.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <catch2/catch.hpp>

using namespace piper::transport;

namespace {

struct Attributes {
  uint32_t size = sizeof(Attributes), policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t slice = 0; ///< nanoseconds; 0: the kernel's own choice, or it knows none
  uint64_t deadline = 0, period = 0;
};

/// Of the calling thread; all 0 where that may not be asked.
Attributes attributes() {
  Attributes read;
  if (syscall(SYS_sched_getattr, 0, &read, sizeof read, 0) != 0)
    return {};
  return read;
}

/// Whether a thread may choose its slice on this kernel, in this container.
bool has_slices() {
  constexpr uint64_t kChosen = 2'000'000;
  bool chosen = false;
  std::thread([&] {
    Attributes wanted = attributes();
    wanted.size = sizeof wanted;
    wanted.slice = kChosen;
    syscall(SYS_sched_setattr, 0, &wanted, 0);
    chosen = attributes().slice == kChosen;
  }).join();
  return chosen;
}

} // namespace

TEST_CASE("a thread that sleeps much asks for a short slice, for itself alone") {
  const uint64_t usual = attributes().slice;
  uint64_t asked = 0;
  int policy = -1;
  std::thread([&] {
    wake_promptly();
    asked = attributes().slice;
    policy = sched_getscheduler(0);
  }).join();
  CHECK(policy == SCHED_OTHER);
  if (has_slices())
    CHECK(asked == 100'000);
  else
    WARN("threads cannot choose their slices here");
  CHECK(attributes().slice == usual);
}

TEST_CASE("who runs under another policy keeps it") {
  int policy = -1;
  std::thread([&] {
    const sched_param none{};
    if (sched_setscheduler(0, SCHED_BATCH, &none) != 0)
      return;
    wake_promptly();
    policy = sched_getscheduler(0);
  }).join();
  if (policy < 0)
    WARN("threads cannot choose their policy here");
  else
    CHECK(policy == SCHED_BATCH);
}
