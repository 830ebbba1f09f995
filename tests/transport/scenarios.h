// The conformance suite: what every backend must do, written once as programs that each device
// runs. A world decides whether the devices are threads or processes, and what joins them.
#pragma once

#include "transport/transport.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace piper::transport::testing {

/// One device's view of a scenario. `expect` may be called from several threads.
class Rank {
public:
  Rank(Endpoint& endpoint, uint32_t world) : endpoint(endpoint), world(world) {}

  Endpoint& endpoint;
  const uint32_t world; ///< devices 0 … world-1 all run the scenario
  DeviceIndex self() const { return endpoint.self(); }

  void expect(bool condition, const std::string& what);
  void expect_ok(const Result<void>& result, const std::string& what);
  /// The error has this kind, and its text contains each of `parts`.
  void expect_error(const Result<void>& result, ErrorKind kind, std::vector<std::string> parts,
                    const std::string& what);
  /// Waits for all devices. Uses an edge of its own, in `epoch`.
  void barrier(ir::Epoch epoch = 0);
  std::string failures() const { return failures_; }

private:
  std::mutex mutex_;
  std::string failures_;
};

struct Scenario {
  std::string name;
  std::function<void(Rank&)> run;
};
/// All of them; each runs on a fresh world of 2 to 4 devices.
const std::vector<Scenario>& scenarios();

/// Runs the scenario on a thread for each endpoint, in a world of so many devices; returns what
/// failed, or "".
std::string run_on_threads(const Scenario& scenario, std::span<Endpoint* const> endpoints,
                           uint32_t world);

/// Receives into memory of its own, or keeps the payload that was handed over.
class Buffer : public Sink {
public:
  void* allocate(size_t bytes) override;
  void adopt(Payload payload) override;
  const std::byte* data() const;
  size_t size() const { return adopted_ ? payload_.bytes() : bytes_.size(); }
  bool adopted() const { return adopted_; }
  bool refuse = false; ///< makes `allocate` return null

private:
  std::vector<std::byte> bytes_;
  Payload payload_;
  bool adopted_ = false;
};

/// `bytes` bytes that depend on the seed.
std::vector<std::byte> pattern(size_t bytes, uint64_t seed);
/// A payload that owns a copy of `bytes`; `released`, if given, counts its release.
Payload make_payload(std::vector<std::byte> bytes, std::atomic<int>* released = nullptr);
Deadline in(std::chrono::milliseconds time);
/// Addresses as text, for the pipes between processes.
std::string to_hex(const std::string& bytes);
std::string from_hex(const std::string& hex);

} // namespace piper::transport::testing
