// That the kernel was asked, where it listens; how soon threads wake is not for a test.
#include "transport/prompt.h"

#include <cstdint>
#include <cstdio>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <thread>
#include <unistd.h>

#include <catch2/catch.hpp>

using namespace piper::transport;

namespace {

/// Nanoseconds of the calling thread's slice; 0: the kernel's own choice, or it knows none.
uint64_t slice() {
  uint64_t attributes[7] = {};
  REQUIRE(syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0) == 0);
  return attributes[3];
}

bool has_slices() {
  utsname kernel;
  REQUIRE(uname(&kernel) == 0);
  int major = 0, minor = 0;
  REQUIRE(std::sscanf(kernel.release, "%d.%d", &major, &minor) == 2);
  return std::pair(major, minor) >= std::pair(6, 12);
}

} // namespace

TEST_CASE("a thread that sleeps much asks for a short slice, for itself alone") {
  const uint64_t usual = slice();
  uint64_t asked = 0;
  int policy = -1;
  std::thread([&] {
    wake_promptly();
    asked = slice();
    policy = sched_getscheduler(0);
  }).join();
  CHECK(policy == SCHED_OTHER);
  if (has_slices())
    CHECK(asked == 100'000);
  else
    WARN("this kernel has no slices");
  CHECK(slice() == usual);
}

TEST_CASE("who runs under another policy keeps it") {
  int policy = -1;
  std::thread([&] {
    const sched_param none{};
    REQUIRE(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    wake_promptly();
    policy = sched_getscheduler(0);
  }).join();
  CHECK(policy == SCHED_BATCH);
}
