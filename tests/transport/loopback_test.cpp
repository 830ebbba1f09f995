// What only loopback promises: the tensor itself is handed over, and a steady state allocates
// nothing.
#include "scenarios.h"
#include "transport/loopback/fabric.h"
#include "transport/prompt.h"

#include <cstdlib>
#include <new>
#include <thread>

#include <catch2/catch.hpp>

namespace {
std::atomic<size_t> allocations{0};
}

void* operator new(size_t bytes) {
  ++allocations;
  if (void* p = std::malloc(bytes ? bytes : 1))
    return p;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes ? bytes : 1); // or it would come from where `free` does not give back to
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace piper::transport::testing {
namespace {

using namespace std::chrono_literals;

const DeviceIndex kDevices[] = {0, 1};

struct Adopter : Sink {
  void* allocate(size_t) override { return nullptr; }
  void adopt(Payload payload) override { got = std::move(payload); }
  Payload got;
};

TEST_CASE("loopback hands over the memory itself") {
  LoopbackFabric fabric(kDevices);
  char memory[16];
  int released = 0;
  auto release = [](void* token) { ++*static_cast<int*>(token); };
  for (bool receiver_first : {false, true}) {
    released = 0;
    Adopter sink;
    std::thread sender([&] {
      if (receiver_first)
        std::this_thread::sleep_for(5ms);
      fabric.endpoint(0).send(1, {1, 1}, Payload(memory, 16, &released, release)).value_or_throw();
    });
    if (!receiver_first)
      sender.join();
    fabric.endpoint(1).recv(0, {1, 1}, 16, sink, in(5s)).value_or_throw();
    if (receiver_first)
      sender.join();
    CHECK(sink.got.data() == memory);
    CHECK(released == 0);
    sink.got = {};
    CHECK(released == 1);
  }
  CHECK(fabric.endpoint(0).bytes_sent() == 32);
}

TEST_CASE("loopback releases what nobody took") {
  int released = 0;
  {
    LoopbackFabric fabric(kDevices);
    fabric.endpoint(0)
        .send(1, {1, 1}, Payload(&released, 4, &released, [](void* t) { ++*static_cast<int*>(t); }))
        .value_or_throw();
    CHECK(released == 0);
  }
  CHECK(released == 1);
}

// A member that has left may lose its core before it knows whether it was the last; by then what it
// met in may hold a meeting of another size. The thread sanitizer sees who reads it then.
TEST_CASE("meetings of groups large and small follow each other") {
  constexpr DeviceIndex kAll[] = {0, 1, 2, 3};
  constexpr int kRounds = 20'000;
  LoopbackFabric fabric(kAll);
  std::vector<std::string> failures(4);
  std::vector<std::thread> members;
  for (DeviceIndex self : kAll)
    members.emplace_back([&, self] {
      wake_promptly(); // the more often threads take a core from each other the better
      const DeviceIndex pair[] = {self & ~1U, self | 1U};
      const auto run = [&]() -> Result<void> {
        for (uint32_t round = 0; round < kRounds; ++round) {
          int64_t one = 1;
          PIPER_CHECK_OK(
              fabric.endpoint(self).all_reduce(kAll, {round, 1}, &one, 1, ir::DType::I64, in(20s)));
          int64_t both[2] = {};
          both[self & 1U] = self + 1;
          PIPER_CHECK_OK(
              fabric.endpoint(self).all_gather(pair, {round, 2}, both, 2, ir::DType::I64, in(20s)));
          if (one != 4 || both[0] != pair[0] + 1 || both[1] != pair[1] + 1)
            return internal_error("the members have other results");
        }
        return {};
      };
      if (const auto done = run(); !done.ok()) {
        failures[self] = done.error().to_string();
        for (DeviceIndex other : kAll)
          fabric.endpoint(other).abort(done.error());
      }
    });
  for (std::thread& member : members)
    member.join();
  for (const std::string& failure : failures)
    CHECK(failure == "");
}

TEST_CASE("loopback in a steady state allocates nothing") {
  LoopbackFabric fabric(kDevices);
  std::vector<float> data[2] = {std::vector<float>(50'000, 1), std::vector<float>(50'000, 2)};
  constexpr int kRounds = 50;
  std::atomic<int> ready = 0;
  std::atomic<size_t> before = 0, after = 0;
  auto run = [&](DeviceIndex self) {
    Endpoint& endpoint = fabric.endpoint(self);
    Adopter sink;
    int failures = 0;
    for (int round = 0; round < 2 * kRounds; ++round) {
      if (round == kRounds) { // the pools have grown to what this load needs
        ++ready;
        while (ready < 2)
          std::this_thread::yield();
        if (self == 0)
          before = allocations.load();
        ++ready;
        while (ready < 4)
          std::this_thread::yield();
      }
      for (uint32_t edge = 0; edge < 8; ++edge)
        failures +=
            !endpoint.send(1 - self, {1, edge, round}, Payload(&failures, 4, nullptr, nullptr));
      for (uint32_t edge = 8; edge-- > 0;)
        failures += !endpoint.recv(1 - self, {1, edge, round}, 4, sink, in(10s));
      for (size_t count : {2u, 50'000u})
        failures += !endpoint.all_reduce(kDevices, {1, 9, round}, data[self].data(), count,
                                         ir::DType::F32, in(10s));
    }
    ++ready;
    while (ready < 6)
      std::this_thread::yield();
    if (self == 0)
      after = allocations.load();
    ++ready;
    while (ready < 8)
      std::this_thread::yield();
    return failures;
  };
  int failures[2] = {};
  std::thread other([&] { failures[1] = run(1); });
  failures[0] = run(0);
  other.join();
  CHECK(failures[0] + failures[1] == 0);
  CHECK(before > 0);
  CHECK(after - before == 0);
}

} // namespace
} // namespace piper::transport::testing
