#include "actors/executor/cpu_stream.h"

#include <functional>
#include <memory>
#include <vector>

#include <catch2/catch.hpp>

namespace piper::executor {
namespace {

struct Call final : Task {
  explicit Call(std::function<void()> call_) : call(std::move(call_)) {}
  void run() noexcept override { call(); }
  void overdue(const Event& event) noexcept override { late = &event; }
  std::function<void()> call;
  const Event* late = nullptr;
};

constexpr auto kLong = std::chrono::seconds(20);

} // namespace

TEST_CASE("an event is reached once and for all, and again when it is recorded again") {
  CpuEvent event;
  REQUIRE(event.wait(0, kLong, false));
  REQUIRE(event.next() == 1);
  REQUIRE_FALSE(event.reached(1));
  auto start = Clock::now();
  REQUIRE_FALSE(event.wait(1, std::chrono::milliseconds(20), true));
  REQUIRE(Clock::now() - start >= std::chrono::milliseconds(20));
  std::thread other([&] { event.set(1); });
  REQUIRE(event.wait(1, kLong, false));
  other.join();
  REQUIRE(event.next() == 2);
  REQUIRE(event.reached(1));
  REQUIRE_FALSE(event.reached(2));
}

TEST_CASE("a stream runs in order, and only what was launched") {
  auto spin = GENERATE(true, false);
  CpuStream stream("test", {.spin = spin});
  std::vector<int> seen;
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 1000; ++i)
    calls.push_back(std::make_unique<Call>([&, i] { seen.push_back(i); }));
  stream.reserve(calls.size());
  for (int round = 0; round < 3; ++round) {
    for (auto& call : calls)
      stream.enqueue(*call);
    REQUIRE(seen.size() == 1000u * round);
    stream.launch();
    REQUIRE(stream.synchronize(kLong).ok());
    REQUIRE(seen.size() == 1000u * (round + 1));
  }
  for (size_t i = 0; i < seen.size(); ++i)
    REQUIRE(seen[i] == static_cast<int>(i % 1000));
  REQUIRE(stream.times().end >= stream.times().start);
}

TEST_CASE("events order work across streams, in every iteration anew") {
  auto spin = GENERATE(true, false);
  CpuStream a("a", {.spin = spin}), b("b", {.spin = spin});
  CpuEvent to_b, to_a;
  int value = 0, wrong = 0; // no lock: the events order every access
  Call add_a([&] { wrong += value++ % 2 != 0; }), add_b([&] { wrong += value++ % 2 != 1; });
  constexpr int kSteps = 2000;
  for (CpuStream* stream : {&a, &b})
    stream->reserve(3 * kSteps);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kSteps; ++i) {
      if (i > 0)
        a.wait(to_a, add_a);
      a.enqueue(add_a);
      a.record(to_b);
      b.wait(to_b, add_b);
      b.enqueue(add_b);
      b.record(to_a);
    }
    b.launch(); // before what it waits for
    a.launch();
    REQUIRE(a.synchronize(kLong).ok());
    REQUIRE(b.synchronize(kLong).ok());
  }
  REQUIRE(value == 3 * 2 * kSteps);
  REQUIRE(wrong == 0);
}

TEST_CASE("a wait that is overdue is told, and the stream goes on") {
  CpuStream a("a", {}), b("b", {.deadline = std::chrono::milliseconds(30)});
  CpuEvent event, release;
  bool ran = false;
  Call blocked([&] { release.wait(1, kLong, false); }), after([&] { ran = true; });
  a.enqueue(blocked);
  a.record(event);
  b.wait(event, after);
  b.enqueue(after);
  a.launch();
  b.launch();
  REQUIRE(b.synchronize(kLong).ok());
  REQUIRE(after.late == &event);
  REQUIRE(ran);
  REQUIRE(b.times().waited >= std::chrono::milliseconds(30));
  auto busy = a.synchronize(std::chrono::milliseconds(10));
  REQUIRE(busy.error().kind == ErrorKind::Timeout);
  REQUIRE(busy.error().to_string() == "stream a: the stream is still busy after 10 ms");
  release.set(1);
  REQUIRE(a.synchronize(kLong).ok());
}

TEST_CASE("a stream finishes what was launched before it ends") {
  bool ran = false;
  Call call([&] { ran = true; });
  {
    CpuStream stream("short", {});
    stream.enqueue(call);
    stream.launch();
  }
  REQUIRE(ran);
}

} // namespace piper::executor
