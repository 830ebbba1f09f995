// A slow network: another transport's endpoint behind a link of given latency and bandwidth.
#pragma once

#include "transport/collective.h"
#include "transport/throttled/link.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

namespace piper::transport {

/// Decorates the endpoint of one device. What the device sends takes its port, one thing after the
/// other, and arrives a latency after it has left; a message is handed to `inner` when it would
/// arrive, by a thread of this object, so a receive needs no delay of its own. A member of a
/// collective waits until its own part would have arrived at the others (all backends exchange
/// directly; an all-reduce crosses twice) and then joins that of `inner`. So no clock is compared
/// with another process's.
///
/// Waiting sleeps and never polls: a slow link costs no processor time. A sleep may overshoot by
/// the kernel's timer slack (50 us by default), but what comes next is timed from when it should
/// have ended.
class ThrottledEndpoint final : public Endpoint {
public:
  /// `inner` outlives this. The devices of the job are 0 … devices-1.
  ThrottledEndpoint(Endpoint& inner, uint32_t devices, Link link);
  /// Hands over at once what is still on its way.
  ~ThrottledEndpoint() override;

  DeviceIndex self() const override { return inner_.self(); }
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
  uint64_t bytes_sent() const override;

private:
  struct Message {
    Deadline due;
    DeviceIndex to = 0;
    Key key;
    Payload payload;
  };

  /// Sleeps until this member's part would have arrived, or `inner` has a reason to refuse.
  Result<void> cross(const Collective& call, Deadline deadline);
  bool refused_locked(const Key& key) const { return aborted_ || key.epoch < oldest_; }
  void deliver(); ///< the thread

  Endpoint& inner_;
  const uint32_t devices_;

  mutable std::mutex mutex_;
  std::condition_variable queued_;  ///< for the thread: the queue is no longer empty, or stop
  std::condition_variable changed_; ///< for all others: nothing on its way, a failure, an abort
  std::deque<Message> underway_;    ///< by `due`: the port is passed in order
  bool handing_over_ = false;       ///< the thread is in `inner_.send`
  bool stop_ = false, aborted_ = false;
  ir::Epoch oldest_ = 0;
  std::optional<Error> failed_; ///< the first send that failed after it was accepted
  Port port_;
  uint64_t sent_ = 0;
  std::thread thread_;
};

} // namespace piper::transport
