// Loopback: the devices of one process. A send hands over the tensor itself; nothing is copied.
#pragma once

#include "transport/loopback/inbox.h"
#include "transport/loopback/meeting.h"

#include <memory>
#include <string>
#include <vector>

namespace piper::transport {

struct LoopbackOptions {
  std::chrono::nanoseconds spin = kDefaultSpin;
};

/// What the devices of one process share. Owns their endpoints; outlives every use of them.
/// Threads: `endpoint` may be called from any thread.
///
/// A send has left as soon as it returns, so `flush` never waits. A steady state allocates nothing.
class LoopbackFabric {
public:
  /// `devices` are distinct, in any order.
  explicit LoopbackFabric(std::span<const DeviceIndex> devices, LoopbackOptions options = {});
  ~LoopbackFabric();
  LoopbackFabric(const LoopbackFabric&) = delete;
  LoopbackFabric& operator=(const LoopbackFabric&) = delete;

  bool contains(DeviceIndex device) const { return find(device) != nullptr; }
  /// The device must be one of those given at construction.
  Endpoint& endpoint(DeviceIndex device);

private:
  class LoopbackEndpoint;
  LoopbackEndpoint* find(DeviceIndex device) const;

  Spinner spinner_;
  Meetings meetings_;
  std::vector<std::unique_ptr<LoopbackEndpoint>> endpoints_; ///< by device
};

} // namespace piper::transport
