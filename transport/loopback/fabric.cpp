#include "transport/loopback/fabric.h"

#include "transport/errors.h"

#include <algorithm>
#include <cassert>

namespace piper::transport {

class LoopbackFabric::LoopbackEndpoint final : public Endpoint {
public:
  LoopbackEndpoint(LoopbackFabric& fabric, DeviceIndex self)
      : fabric_(fabric), self_(self), inbox_(self, fabric.spinner_) {}

  DeviceIndex self() const override { return self_; }

  Result<void> send(DeviceIndex to, const Key& key, Payload payload) override {
    PIPER_CHECK_OK(inbox_.check(key));
    LoopbackEndpoint* peer = fabric_.find(to);
    if (!peer)
      return unknown_device_error(self_, to);
    sent_.fetch_add(payload.bytes(), std::memory_order_relaxed);
    peer->inbox_.put(self_, key, std::move(payload));
    return {};
  }

  Result<void> recv(DeviceIndex from, const Key& key, size_t bytes, Sink& sink,
                    Deadline deadline) override {
    if (!fabric_.contains(from))
      return unknown_device_error(self_, from);
    PIPER_TRY(Payload payload, inbox_.take(from, key, deadline));
    if (payload.bytes() != bytes)
      return size_error(self_, from, key, bytes, payload.bytes());
    sink.adopt(std::move(payload));
    return {};
  }

  Result<void> all_reduce(std::span<const DeviceIndex> group, const Key& key, void* data,
                          size_t count, ir::DType dtype, Deadline deadline) override {
    return collective({CollectiveKind::AllReduce, group, key, data, count, dtype}, deadline);
  }
  Result<void> reduce_scatter(std::span<const DeviceIndex> group, const Key& key, void* data,
                              size_t count, ir::DType dtype, Deadline deadline) override {
    return collective({CollectiveKind::ReduceScatter, group, key, data, count, dtype}, deadline);
  }
  Result<void> all_gather(std::span<const DeviceIndex> group, const Key& key, void* data,
                          size_t count, ir::DType dtype, Deadline deadline) override {
    return collective({CollectiveKind::AllGather, group, key, data, count, dtype}, deadline);
  }

  Result<void> flush(Deadline) override { return inbox_.check(); }

  void abort(Error reason) override {
    inbox_.abort(reason);
    fabric_.meetings_.leave(self_, reason);
  }

  void reset(ir::Epoch oldest) override {
    inbox_.reset(oldest);
    fabric_.meetings_.leave(
        self_, internal_error("a collective of an epoch that ended was still waited for"), oldest);
  }

  uint64_t bytes_sent() const override { return sent_.load(std::memory_order_relaxed); }

private:
  Result<void> collective(const Collective& call, Deadline deadline) {
    PIPER_CHECK_OK(inbox_.check(call.key));
    PIPER_TRY(size_t rank, call.check(self_));
    for (DeviceIndex member : call.group)
      if (!fabric_.contains(member))
        return unknown_device_error(self_, member);
    sent_.fetch_add(call.wire_bytes(), std::memory_order_relaxed);
    if (call.group.size() == 1)
      return {};
    return fabric_.meetings_.join(call, rank, inbox_, deadline);
  }

  LoopbackFabric& fabric_;
  const DeviceIndex self_;
  Inbox inbox_;
  std::atomic<uint64_t> sent_{0};
};

LoopbackFabric::LoopbackFabric(std::span<const DeviceIndex> devices, LoopbackOptions options)
    : spinner_(options.spin), meetings_(devices.size(), spinner_) {
  for (DeviceIndex device : devices) {
    if (device >= endpoints_.size())
      endpoints_.resize(device + 1);
    endpoints_[device] = std::make_unique<LoopbackEndpoint>(*this, device);
  }
}

LoopbackFabric::~LoopbackFabric() = default;

LoopbackFabric::LoopbackEndpoint* LoopbackFabric::find(DeviceIndex device) const {
  return device < endpoints_.size() ? endpoints_[device].get() : nullptr;
}

Endpoint& LoopbackFabric::endpoint(DeviceIndex device) {
  assert(contains(device));
  return *find(device);
}

} // namespace piper::transport
