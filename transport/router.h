// One endpoint for a device whose peers are partly in this process.
#pragma once

#include "transport/transport.h"

#include <unordered_set>

namespace piper::transport {

/// Sends to the devices of `local` through one endpoint, to all others through another. A
/// collective whose group lies within `local` goes through the former. Both endpoints are those of
/// the same device and outlive this one.
///
/// What `remote` says of devices of this process does not matter for messages, but a collective of
/// a mixed group runs through it alone, so it must reach this process's devices too.
class RoutedEndpoint final : public Endpoint {
public:
  RoutedEndpoint(Endpoint& local, Endpoint& remote, std::span<const DeviceIndex> local_devices);

  DeviceIndex self() const override { return local_.self(); }
  Result<void> send(DeviceIndex to, const Key& key, Payload payload) override;
  Result<void> recv(DeviceIndex from, const Key& key, size_t bytes, Sink& sink,
                    Deadline deadline) override;
  Result<void> all_reduce(std::span<const DeviceIndex> group, const Key& key, void* data,
                          size_t count, ir::DType dtype, Deadline deadline) override;
  Result<void> reduce_scatter(std::span<const DeviceIndex> group, const Key& key, void* data,
                              size_t count, ir::DType dtype, Deadline deadline) override;
  Result<void> all_gather(std::span<const DeviceIndex> group, const Key& key, void* data,
                          size_t count, ir::DType dtype, Deadline deadline) override;
  Result<void> flush(Deadline deadline) override;
  void abort(Error reason) override;
  void reset(ir::Epoch oldest) override;
  uint64_t bytes_sent() const override { return local_.bytes_sent() + remote_.bytes_sent(); }

private:
  Endpoint& of(DeviceIndex device) { return is_local_.count(device) ? local_ : remote_; }
  Endpoint& of(std::span<const DeviceIndex> group);

  Endpoint& local_;
  Endpoint& remote_;
  const std::unordered_set<DeviceIndex> is_local_;
};

} // namespace piper::transport
