// Roster: which processes the job needs and which have joined. Plain logic of the handshake; the
// gate actor carries it out.
//
// A worker says Hello and gets an Offer or a refusal. It builds the model and answers ready (with
// its transport address) or declines. When all are ready, all connect.
#pragma once

#include "actors/executor/device.h"
#include "actors/protocol.h"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace piper::actors {

/// From a worker that wants to join.
struct Hello {
  std::string version; ///< of piper
  int64_t pid = 0;
  std::string model_name, model_config; ///< that it insists on; may be empty
};

/// What a worker is to do.
struct Offer {
  uint32_t process = 0; ///< 1 … workers; the session is 0
  uint32_t processes = 1;
  uint32_t devices = 1; ///< of the job
  std::string model_name, model_config;
  ir::Fingerprint model;
  uint8_t transport = 0; ///< TransportKind
  bool spin = true;
  int64_t link_latency_ns = 0;
  double link_bandwidth = 0;
  // Of each of its devices:
  int32_t threads = 1;
  int64_t memory_cap = 0;
  std::string offload_directory;
  uint64_t seed = 1;
  int64_t deadline_ms = 60'000;
  executor::OptimizerSpec optimizer;
};

/// The process of a device: d * processes / devices.
inline uint32_t process_of(DeviceIndex device, uint32_t processes, uint32_t devices) {
  return static_cast<uint32_t>(uint64_t{device} * processes / devices);
}
std::vector<DeviceIndex> devices_of(uint32_t process, uint32_t processes, uint32_t devices);

class Roster {
public:
  /// `offer` is what every worker gets, but for its number.
  Roster(std::string version, Offer offer);

  /// The next free place. Refused, with an error for both sides: another version, another model,
  /// no place left.
  Result<Offer> join(const Hello& hello);
  /// The process has built the model and can be reached at `address`.
  void ready(uint32_t process, std::string address);
  /// Frees the place: declined, or gone before the start.
  void leave(uint32_t process, std::optional<Error> why = {});

  bool all_ready() const;
  /// Of each process; that of the session is `own`.
  std::vector<std::string> addresses(std::string own) const;
  std::string name(uint32_t process) const; ///< "main", "worker 1 (pid 123)"
  /// "worker 1 (pid 123) with devices 2, 3 was lost".
  Error lost(uint32_t process) const;
  /// Timeout: who has not joined, and why the last one was refused.
  Error missing(std::chrono::milliseconds waited) const;

private:
  struct Place {
    bool taken = false, ready = false;
    int64_t pid = 0;
    std::string address;
  };
  const std::string version_;
  const Offer offer_;
  std::vector<Place> places_; ///< of worker i + 1
  std::optional<Error> last_refusal_;
};

/// What a worker checks before it accepts: that the model it built is the session's.
Result<void> check_model(const Offer& offer, const ir::Fingerprint& built);

} // namespace piper::actors
