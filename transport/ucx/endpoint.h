// One device's end of the UCX backend.
#pragma once

#include "transport/collective.h"
#include "transport/ucx/worker.h"

#include <unordered_map>

namespace piper::transport {

/// The process that a device lives in, and the device's place in it.
struct UcxRoute {
  UcxConnection* connection = nullptr;
  uint64_t place = 0;
};
/// Guarded by the worker's mutex.
using UcxRoutes = std::unordered_map<DeviceIndex, UcxRoute>;

class UcxEndpoint final : public Endpoint {
public:
  UcxEndpoint(UcxWorker& worker, const UcxRoutes& routes, DeviceIndex self, uint64_t place)
      : worker_(worker), routes_(routes), self_(self), place_(place) {}

  DeviceIndex self() const override { return self_; }
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
  uint64_t bytes_sent() const override { return sent_.load(std::memory_order_relaxed); }

  /// Drops what has come of ended epochs.
  void tick(const UcxWorker::Lock& lock);

private:
  class Exchange;
  struct Scratch {
    std::vector<std::byte> bytes;
    std::unique_ptr<UcxOp[]> ops;
    size_t op_count = 0;
  };

  Result<void> check(const UcxWorker::Lock&) const;
  Result<void> check(const UcxWorker::Lock&, const Key& key) const;
  Result<UcxRoute> route(const UcxWorker::Lock&, DeviceIndex device) const;
  /// Whether an operation that has ended did what it should.
  Result<void> outcome(const UcxOp& op, DeviceIndex peer, const Key& key, size_t bytes,
                       bool timed_out);
  Result<void> collective(const Collective& call, Deadline deadline);
  void finished(UcxSend& send, ucs_status_t status);

  UcxWorker& worker_;
  const UcxRoutes& routes_;
  const DeviceIndex self_;
  const uint64_t place_;
  std::atomic<uint64_t> sent_{0};

  // Guarded by the worker's mutex.
  std::optional<Error> aborted_;
  std::optional<Error> failed_; ///< the first send that failed after it was accepted
  ir::Epoch oldest_ = 0;
  std::vector<TagPattern> stale_;
  size_t pending_ = 0; ///< sends that have not left
  std::vector<Event*> flushing_;
  std::vector<std::unique_ptr<Scratch>> scratch_; ///< not in use
};

} // namespace piper::transport
