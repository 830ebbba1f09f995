// A process of the transport tests. Talks with the test through stdin and stdout:
//
//   transport_peer MODE NAME DEVICES OTHERS...    its devices, then each other process's: 0 1,2
//
// It prints its address in hex, reads those of the other processes (one line each, in the order of
// the arguments), connects, runs what NAME says, and prints what failed, or "ok".
#include "scenarios.h"
#include "transport/bench.h"
#include "transport/ucx/fabric.h"

#include <fmt/format.h>
#include <iostream>
#include <sstream>

namespace piper::transport::testing {
namespace {

using namespace std::chrono_literals;

std::vector<DeviceIndex> parse_devices(const std::string& text) {
  std::vector<DeviceIndex> out;
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');)
    out.push_back(static_cast<DeviceIndex>(std::stoul(item)));
  return out;
}

std::string read_line() {
  std::string line;
  std::getline(std::cin, line);
  return line;
}

/// Sends to and receives from device 0 until the test kills this process.
std::string chatter(Endpoint& endpoint) {
  for (uint32_t i = 0;; ++i) {
    Buffer buffer;
    (void)endpoint.send(0, {1, 1}, make_payload(pattern(2 << 20, i)));
    if (!endpoint.recv(0, {1, 2}, 8, buffer, in(20s)).ok())
      return "lost device 0";
  }
}

std::string benchmark(Endpoint& endpoint, const std::string& only) {
  std::vector<size_t> sizes = default_bench_sizes();
  if (!only.empty())
    sizes = {std::stoul(only)};
  auto rows = run_transport_bench_rank(endpoint, sizes, 400ms);
  if (!rows.ok())
    return rows.error().to_string();
  if (endpoint.self() == 0)
    for (const auto& row : *rows)
      fmt::print("{:10} {:9} B  best {:10.2f} us {:7.3f} GB/s  median {:10.2f} us\n", row.op,
                 row.bytes, row.best_seconds * 1e6, row.gigabytes_per_second(),
                 row.median_seconds * 1e6);
  return "ok";
}

std::string run(const std::string& name, UcxFabric& fabric, const std::vector<DeviceIndex>& devices,
                uint32_t world) {
  Endpoint& endpoint = fabric.endpoint(devices[0]);
  if (name == "chatter")
    return chatter(endpoint);
  if (name.rfind("bench", 0) == 0) // "bench", or "bench" and a size
    return benchmark(endpoint, name.substr(5));
  if (name == "leave") // a last message, then the fabric goes
    return endpoint.send(0, {1, 1}, make_payload(pattern(100'000, 3))).ok() ? "ok" : "send failed";
  for (const auto& scenario : scenarios()) {
    if (scenario.name != name)
      continue;
    std::vector<Endpoint*> endpoints;
    for (DeviceIndex device : devices)
      endpoints.push_back(&fabric.endpoint(device));
    const std::string failures = run_on_threads(scenario, endpoints, world);
    return failures.empty() ? "ok" : failures;
  }
  return "no scenario has the name " + name;
}

int main(int argc, char** argv) {
  const std::string mode = argv[1], name = argv[2];
  const auto devices = parse_devices(argv[3]);
  auto fabric = UcxFabric::create(
      {.devices = devices, .mode = mode == "tcp" ? UcxMode::Tcp : UcxMode::SharedMemory});
  if (!fabric.ok()) {
    std::cout << fabric.error().to_string() << std::endl;
    return 1;
  }
  std::cout << to_hex((*fabric)->address()) << std::endl;
  std::vector<UcxPeer> peers;
  uint32_t world = static_cast<uint32_t>(devices.size());
  for (int i = 4; i < argc; ++i) {
    peers.push_back({from_hex(read_line()), parse_devices(argv[i])});
    world += static_cast<uint32_t>(peers.back().devices.size());
  }
  if (auto connected = (*fabric)->connect(peers); !connected.ok()) {
    std::cout << connected.error().to_string() << std::endl;
    return 1;
  }
  std::cout << run(name, **fabric, devices, world) << std::endl;
  return 0;
}

} // namespace
} // namespace piper::transport::testing

int main(int argc, char** argv) {
  return piper::transport::testing::main(argc, argv);
}
