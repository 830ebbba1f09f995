// UCX: devices of several processes and hosts, over shared memory or TCP.
#pragma once

#include "transport/wait.h"

#include <memory>
#include <string>
#include <vector>

namespace piper::transport {

enum class UcxMode {
  Auto,         ///< shared memory within a host, TCP between hosts
  SharedMemory, ///< one host only
  Tcp,
};

struct UcxOptions {
  std::vector<DeviceIndex> devices; ///< of this process: at most 64, each below 16384
  UcxMode mode = UcxMode::Auto;
  /// How long a wait polls before it sleeps in the kernel.
  std::chrono::nanoseconds spin = kDefaultSpin;
  /// A process that was killed is noticed within about two of these.
  std::chrono::milliseconds keepalive{200};
  /// How long the destructor waits for what is still being sent, and for the peers' farewell.
  std::chrono::milliseconds linger{1000};
};

/// Another process of the job.
struct UcxPeer {
  std::string address;              ///< its UcxFabric::address()
  std::vector<DeviceIndex> devices; ///< all of that process's, in any order
};

/// The devices of this process, connected to those of other processes (and to each other). Owns
/// their endpoints and a thread that sleeps while nothing moves. Outlives every use of the
/// endpoints.
///
/// - Every process exchanges addresses by means of its own and calls `connect` before its first
///   operation with a peer. A later call adds processes that joined; a device whose process was
///   lost or has left may come back in another one.
/// - A peer that dies fails the operations with its devices with DeviceLost, also those that wait.
///   One that destroys its fabric says goodbye: only operations that still need it fail.
/// - A receive that its deadline or an abort finds in the middle of a transfer waits up to a second
///   for it to end, then gives up the peer.
/// - A payload's `release` may run on any thread and must not call the transport.
/// - Keys must fit a tag (ucx/tag.h): edge < 2^20, microbatch < 4095; fewer than 512 epochs apart.
class UcxFabric {
public:
  static Result<std::unique_ptr<UcxFabric>> create(UcxOptions options);
  /// Sends what is outstanding (for at most `linger`), says goodbye and disconnects.
  ~UcxFabric();
  UcxFabric(const UcxFabric&) = delete;
  UcxFabric& operator=(const UcxFabric&) = delete;

  /// What the other processes need to connect: some hundred bytes, not text.
  const std::string& address() const;
  Result<void> connect(std::span<const UcxPeer> peers);
  /// The device must be one of this process.
  Endpoint& endpoint(DeviceIndex device);

private:
  struct State;
  explicit UcxFabric(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

} // namespace piper::transport
