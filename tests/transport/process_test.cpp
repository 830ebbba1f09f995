// Devices in processes of their own, and what happens when one goes away.
#include "processes.h"

#include <csignal>
#include <memory>
#include <thread>

#include <catch2/catch.hpp>

namespace piper::transport::testing {
namespace {

using namespace std::chrono_literals;

const UcxMode kModes[] = {UcxMode::SharedMemory, UcxMode::Tcp};
const char* name_of(UcxMode mode) {
  return mode == UcxMode::Tcp ? "tcp" : "shared memory";
}

/// Runs the scenario with each group of devices in a process of its own.
std::string run_on_processes(const std::string& scenario, UcxMode mode,
                             const std::vector<std::vector<DeviceIndex>>& placement) {
  std::vector<std::unique_ptr<PeerProcess>> processes;
  std::vector<std::string> addresses;
  for (size_t i = 0; i < placement.size(); ++i) {
    auto others = placement;
    others.erase(others.begin() + static_cast<ptrdiff_t>(i));
    processes.push_back(std::make_unique<PeerProcess>(mode, scenario, placement[i], others));
  }
  for (auto& process : processes)
    addresses.push_back(process->read_line());
  for (size_t i = 0; i < processes.size(); ++i)
    for (size_t k = 0; k < processes.size(); ++k)
      if (k != i)
        processes[i]->write_line(addresses[k]);
  std::string failures;
  for (auto& process : processes)
    if (std::string said = process->read_rest(60s); said != "ok\n")
      failures += said.empty() ? "a process ended without a word\n" : said;
  return failures;
}

TEST_CASE("transport conformance across processes") {
  for (UcxMode mode : kModes)
    for (const auto& scenario : scenarios())
      DYNAMIC_SECTION(name_of(mode) << ": " << scenario.name) {
        CHECK(run_on_processes(scenario.name, mode, {{0}, {1, 2}}) == "");
      }
}

/// Device 0 here and device 1 in a process that does what `name` says.
struct Pair {
  Pair(UcxMode mode, const std::string& name) : process(mode, name, {1}, {{0}}) {
    auto created = UcxFabric::create({.devices = {0}, .mode = mode});
    REQUIRE(created.ok());
    fabric = *std::move(created);
    const UcxPeer peer{from_hex(process.read_line()), {1}};
    process.write_line(to_hex(fabric->address()));
    REQUIRE(fabric->connect({&peer, 1}).ok());
  }
  Endpoint& endpoint() { return fabric->endpoint(0); }

  PeerProcess process;
  std::unique_ptr<UcxFabric> fabric;
};

TEST_CASE("a killed process fails what waits for it") {
  for (UcxMode mode : kModes)
    DYNAMIC_SECTION(name_of(mode)) {
      Pair pair(mode, "chatter");
      Endpoint& endpoint = pair.endpoint();
      Buffer buffer;
      REQUIRE(endpoint.recv(1, {1, 1}, 2 << 20, buffer, in(20s)).ok());
      // A large send that nobody will take, a receive and a collective that wait.
      std::atomic<int> released = 0;
      REQUIRE(endpoint.send(1, {1, 3}, make_payload(pattern(4 << 20, 1), &released)).ok());
      Result<void> received, reduced;
      std::thread receiver([&] { received = endpoint.recv(1, {1, 9}, 8, buffer, in(20s)); });
      std::thread reducer([&] {
        const DeviceIndex group[] = {0, 1};
        std::vector<float> x(1 << 20);
        reduced = endpoint.all_reduce(group, {1, 8}, x.data(), x.size(), ir::DType::F32, in(20s));
      });
      std::this_thread::sleep_for(50ms);
      const auto begin = Clock::now();
      pair.process.kill();
      receiver.join();
      reducer.join();
      const auto flushed = endpoint.flush(in(20s));
      CHECK(Clock::now() - begin < 1s);
      for (const Result<void>* result :
           {&std::as_const(received), &std::as_const(reduced), &flushed}) {
        REQUIRE(!result->ok());
        INFO(result->error().to_string());
        CHECK(result->error().kind == ErrorKind::DeviceLost);
        CHECK(result->error().message.find("device 1 is lost") != std::string::npos);
      }
      CHECK(released == 1);
      const auto sent = endpoint.send(1, {1, 3}, make_payload({}));
      REQUIRE(!sent.ok());
      CHECK(sent.error().kind == ErrorKind::DeviceLost);
      // After a reset the rest of the job goes on; that device stays lost.
      endpoint.reset(2);
      CHECK(endpoint.flush(in(1s)).ok());
      const auto again = endpoint.send(1, {2, 3}, make_payload({}));
      REQUIRE(!again.ok());
      CHECK(again.error().kind == ErrorKind::DeviceLost);
    }
}

TEST_CASE("a process that leaves is no error") {
  for (UcxMode mode : kModes)
    DYNAMIC_SECTION(name_of(mode)) {
      Pair pair(mode, "leave");
      Endpoint& endpoint = pair.endpoint();
      Result<void> waited;
      std::thread waiter([&] {
        Buffer buffer;
        waited = endpoint.recv(1, {1, 5}, 8, buffer, in(20s));
      });
      Buffer buffer;
      CHECK(endpoint.recv(1, {1, 1}, 100'000, buffer, in(20s)).ok());
      const auto begin = Clock::now();
      CHECK(pair.process.read_rest(10s) == "ok\n");
      CHECK(Clock::now() - begin < 1s); // it did not have to linger
      waiter.join();
      CHECK(endpoint.flush(in(1s)).ok());
      // What still needs it says why it cannot be.
      REQUIRE(!waited.ok());
      CHECK(waited.error().to_string() ==
            "device 0: device 1 is lost (epoch 1, edge 5): its process has closed the transport");
    }
}

TEST_CASE("a process may join in place of a lost one") {
  Pair pair(UcxMode::SharedMemory, "leave");
  Buffer buffer;
  REQUIRE(pair.endpoint().recv(1, {1, 1}, 100'000, buffer, in(20s)).ok());
  pair.process.read_rest(10s);
  REQUIRE(!pair.endpoint().recv(1, {1, 5}, 8, buffer, in(20s)).ok());
  PeerProcess second(UcxMode::SharedMemory, "leave", {1}, {{0}});
  const UcxPeer peer{from_hex(second.read_line()), {1}};
  second.write_line(to_hex(pair.fabric->address()));
  REQUIRE(pair.fabric->connect({&peer, 1}).ok());
  CHECK(pair.endpoint().recv(1, {1, 1}, 100'000, buffer, in(20s)).ok());
  const auto twice = pair.fabric->connect({&peer, 1});
  if (!twice.ok()) // unless it has left already
    CHECK(twice.error().message == "device 1 is connected already");
}

TEST_CASE("what the UCX backend refuses") {
  auto none = UcxFabric::create({.devices = {}});
  REQUIRE(!none.ok());
  CHECK(none.error().message.find("needs 1 to 64 distinct devices") != std::string::npos);
  auto created = UcxFabric::create({.devices = {0}});
  REQUIRE(created.ok());
  Endpoint& endpoint = (*created)->endpoint(0);
  auto message = [&](const Key& key) {
    auto result = endpoint.send(0, key, make_payload({}));
    return result.ok() ? "" : result.error().message;
  };
  CHECK(message({1, 1 << 20}) == "the key (epoch 1, edge 1048576) does not fit a UCX tag: edge "
                                 "1048576 is above 1048575");
  CHECK(message({1, 1, 4095}) == "the key (epoch 1, edge 1, microbatch 4095) does not fit a UCX "
                                 "tag: microbatch 4095 is above 4094");
  CHECK(message({1, 1, 4094}) == "");
  Buffer refusing;
  refusing.refuse = true;
  auto refused = endpoint.recv(0, {1, 1, 4094}, 8, refusing, in(1s));
  REQUIRE(!refused.ok());
  CHECK(refused.error().kind == ErrorKind::OutOfMemory);
  CHECK(refused.error().message ==
        "no memory for 8 bytes from device 0 (epoch 1, edge 1, microbatch 4094)");
}

} // namespace
} // namespace piper::transport::testing
