// The throttled link: its arithmetic on a clock that the test sets, and that it really waits,
// without work. Real times are only bounded from below, so a busy machine fails nothing.
#include "scenarios.h"
#include "transport/loopback/fabric.h"
#include "transport/throttled/endpoint.h"

#include <ctime>
#include <thread>

#include <catch2/catch.hpp>

namespace piper::transport::testing {
namespace {

using namespace std::chrono_literals;

const DeviceIndex kDevices[] = {0, 1};

struct SlowPair {
  explicit SlowPair(Link link, uint32_t devices = 2)
      : a(fabric.endpoint(0), devices, link), b(fabric.endpoint(1), devices, link) {}
  LoopbackFabric fabric{kDevices};
  ThrottledEndpoint a, b;
};

TEST_CASE("a port serves what it is given one after the other, and latency adds to that") {
  const Deadline start{std::chrono::hours(1)};
  Port port({.latency = 50us, .bandwidth = 1e9}); // a byte a nanosecond
  CHECK(port.reserve(start, 1000) - start == 51us);
  CHECK(port.reserve(start, 1000) - start == 52us); // waits for the first
  CHECK(port.reserve(start + 1us, 500, 2) - start == 102us + 500ns);
  CHECK(port.reserve(start + 10us, 0) - start == 60us); // the port was free again
  CHECK(port.reserve(start + 1s, 1'000'000) - start == 1s + 1ms + 50us);
  // A million messages take what their bytes take: nothing is rounded up on the way.
  Port many({.latency = 0ns, .bandwidth = 1e9});
  Deadline last = start;
  for (int i = 0; i < 1'000'000; ++i)
    last = many.reserve(start, 100);
  CHECK(last - start == 100ms);
  CHECK(Port({.latency = 5us}).reserve(start, 1 << 30) - start == 5us);
}

TEST_CASE("a link reads as a latency and a bandwidth") {
  CHECK(*parse_link("50us,1GB/s") == Link{50us, 1e9});
  CHECK(*parse_link("1.5ms,250MB/s") == Link{1500us, 250e6});
  CHECK(*parse_link("0ns,8KB/s") == Link{0ns, 8000});
  CHECK(*parse_link("2s,10B/s") == Link{2s, 10});
  for (const char* text :
       {"50,1GB/s", "us,1GB/s", "-1us,1GB/s", "", "9999999s,1GB/s", "nanus,1B/s"})
    CHECK(parse_link(text).error().to_string().find("cannot read the latency of the link \"" +
                                                    std::string(text)) != std::string::npos);
  for (const char* text : {"50us", "50us,", "50us,1Gb/s", "50us,0GB/s", "1us,1GB/s,2", "1us,-1B/s"})
    CHECK(parse_link(text).error().to_string().find("cannot read the bandwidth of the link \"" +
                                                    std::string(text)) != std::string::npos);
}

TEST_CASE("a message takes latency and bandwidth, and no processor time") {
  SlowPair pair({20ms, 1e6});
  const std::clock_t work = std::clock();
  const auto begin = Clock::now();
  for (uint64_t i = 0; i < 3; ++i)
    pair.a.send(1, {1, 1}, make_payload(pattern(50'000, i))).value_or_throw();
  CHECK(pair.a.bytes_sent() == 150'000);
  for (uint64_t i = 0; i < 3; ++i) {
    Buffer buffer;
    pair.b.recv(0, {1, 1}, 50'000, buffer, in(60s)).value_or_throw();
    CHECK(buffer.adopted());
    CHECK(Clock::now() - begin >= 20ms + (i + 1) * 50ms);
  }
  pair.a.flush(in(60s)).value_or_throw();
  // Of this process, over at least 170 ms.
  CHECK(static_cast<double>(std::clock() - work) / CLOCKS_PER_SEC < 0.08);
}

TEST_CASE("a collective takes what its slowest member takes to send") {
  SlowPair pair({10ms, 1e6});
  std::vector<float> x(10'000, 1), y(10'000, 2);
  const auto begin = Clock::now();
  std::thread other([&] {
    pair.b.all_reduce(kDevices, {1, 1}, y.data(), 10'000, ir::DType::F32, in(60s)).value_or_throw();
  });
  pair.a.all_reduce(kDevices, {1, 1}, x.data(), 10'000, ir::DType::F32, in(60s)).value_or_throw();
  CHECK(Clock::now() - begin >= 60ms); // twice 20'000 bytes, twice the latency
  other.join();
  CHECK(x[0] == 3);
  CHECK(y[9'999] == 3);
  CHECK(pair.a.bytes_sent() == 40'000);

  // What is on the port already goes first.
  const auto again = Clock::now();
  pair.a.send(1, {1, 2}, make_payload(pattern(30'000, 1))).value_or_throw();
  other = std::thread([&] {
    pair.b.all_gather(kDevices, {1, 3}, y.data(), 10'000, ir::DType::F32, in(60s)).value_or_throw();
  });
  pair.a.all_gather(kDevices, {1, 3}, x.data(), 10'000, ir::DType::F32, in(60s)).value_or_throw();
  CHECK(Clock::now() - again >= 60ms); // 30'000 and 20'000 bytes, and a latency
  other.join();
}

TEST_CASE("a deadline that is shorter than the link is kept, and names the time-out") {
  SlowPair pair({10s, 1e9});
  float x = 1;
  const auto begin = Clock::now();
  const auto result = pair.a.all_reduce(kDevices, {1, 8}, &x, 1, ir::DType::F32, in(20ms));
  CHECK(Clock::now() - begin < 5s);
  CHECK(result.error().kind == ErrorKind::Timeout);
  pair.a.send(1, {1, 1}, make_payload({})).value_or_throw();
  const auto flushed = pair.a.flush(in(20ms));
  CHECK(flushed.error().to_string().find("1 sends have not left before the deadline") !=
        std::string::npos);
  pair.a.abort(internal_error("enough"));
}

TEST_CASE("an abort drops what is on its way and wakes who waits for the link") {
  SlowPair pair({30s, 1e9});
  std::atomic<int> released = 0;
  pair.a.send(1, {1, 1}, make_payload(pattern(100, 1), &released)).value_or_throw();
  float x = 1;
  std::thread waiting([&] {
    const auto result = pair.a.all_reduce(kDevices, {1, 8}, &x, 1, ir::DType::F32, in(60s));
    CHECK(result.error().message == "device 7 burns");
  });
  const auto begin = Clock::now();
  pair.a.abort({ErrorKind::PeerAborted, "device 7 burns", "", ""});
  waiting.join();
  CHECK(Clock::now() - begin < 10s);
  CHECK(released == 1);
  CHECK(pair.a.flush(in(60s)).error().message == "device 7 burns");
  pair.a.reset(2);
  CHECK(pair.a.flush(in(60s)).ok());
}

TEST_CASE("a send that fails after it was accepted fails the flush and all after it") {
  SlowPair pair({1ms, 1e9}, 3); // a job of three devices, one of which is not there
  pair.a.send(2, {1, 1}, make_payload(pattern(8, 1))).value_or_throw();
  const std::string why = "device 2 is not connected";
  CHECK(pair.a.flush(in(60s)).error().message == why);
  CHECK(pair.a.send(1, {1, 2}, make_payload(pattern(8, 1))).error().message == why);
  float x = 1;
  CHECK(pair.a.all_reduce(kDevices, {1, 3}, &x, 1, ir::DType::F32, in(60s)).error().message == why);
  pair.a.reset(2);
  CHECK(pair.a.send(1, {2, 2}, make_payload(pattern(8, 1))).ok());
}

TEST_CASE("what is on its way when the endpoint ends still arrives") {
  LoopbackFabric fabric(kDevices);
  {
    ThrottledEndpoint slow(fabric.endpoint(0), 2, {.latency = 60s});
    slow.send(1, {1, 1}, make_payload(pattern(8, 1))).value_or_throw();
  }
  Buffer buffer;
  fabric.endpoint(1).recv(0, {1, 1}, 8, buffer, in(1s)).value_or_throw();
}

} // namespace
} // namespace piper::transport::testing
