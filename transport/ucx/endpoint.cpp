#include "transport/ucx/endpoint.h"

#include "transport/errors.h"

#include <algorithm>
#include <fmt/format.h>

namespace piper::transport {

using Lock = UcxWorker::Lock;

Result<void> UcxEndpoint::check(const Lock&) const {
  if (aborted_)
    return *aborted_;
  if (failed_)
    return *failed_;
  return {};
}

Result<void> UcxEndpoint::check(const Lock& lock, const Key& key) const {
  PIPER_CHECK_OK(check(lock));
  if (key.epoch < oldest_)
    return stale_error(self_, key, oldest_);
  return {};
}

Result<UcxRoute> UcxEndpoint::route(const Lock&, DeviceIndex device) const {
  const auto at = routes_.find(device);
  if (at == routes_.end())
    return unknown_device_error(self_, device);
  return at->second;
}

Result<void> UcxEndpoint::outcome(const UcxOp& op, DeviceIndex peer, const Key& key, size_t bytes,
                                  bool timed_out) {
  if (op.status == UCS_OK && (op.is_send || op.length == bytes))
    return {};
  if (op.status == UCS_OK || op.status == UCS_ERR_MESSAGE_TRUNCATED) {
    if (op.is_send) // the peer dropped it: it has ended the epoch, or expected another size
      return {};
    return size_error(self_, peer, key, bytes, op.length);
  }
  auto lock = worker_.lock();
  PIPER_CHECK_OK(check(lock));
  if (op.connection->state != UcxConnection::State::Alive)
    return lost_error(self_, peer, key, op.connection->why);
  if (timed_out)
    return timeout_error(self_, peer, key);
  return lost_error(self_, peer, key, ucs_status_string(op.status));
}

void UcxEndpoint::finished(UcxSend& send, ucs_status_t status) {
  // Truncated: the receiver dropped it, or expected less, which is its error to report.
  if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED && !failed_) {
    const bool known = send.connection->state != UcxConnection::State::Alive;
    failed_ = lost_error(self_, send.to, send.key,
                         known ? send.connection->why.c_str() : ucs_status_string(status));
  }
  if (--pending_ == 0)
    for (Event* event : flushing_)
      worker_.wake(*event);
}

Result<void> UcxEndpoint::send(DeviceIndex to, const Key& key, Payload payload) {
  PIPER_TRY(uint64_t tag_without_place, make_tag(TagKind::PointToPoint, key, self_, 0));
  const size_t bytes = payload.bytes();
  {
    auto lock = worker_.lock();
    PIPER_CHECK_OK(check(lock, key));
    PIPER_TRY(UcxRoute at, route(lock, to));
    if (at.connection->state != UcxConnection::State::Alive)
      return lost_error(self_, to, key, at.connection->why);
    UcxSend* send = worker_.allocate_send(lock);
    send->payload = std::move(payload);
    send->to = to;
    send->key = key;
    send->connection = at.connection;
    send->owner = this;
    send->finished = [](UcxSend& s, ucs_status_t status) {
      static_cast<UcxEndpoint*>(s.owner)->finished(s, status);
    };
    ++pending_;
    worker_.send(lock, send, tag_without_place | at.place);
    sent_.fetch_add(bytes, std::memory_order_relaxed);
    if (pending_ == 0)
      return check(lock);
  }
  worker_.drive_in_background();
  return {};
}

Result<void> UcxEndpoint::recv(DeviceIndex from, const Key& key, size_t bytes, Sink& sink,
                               Deadline deadline) {
  UcxOp op;
  PIPER_TRY(op.tag, make_tag(TagKind::PointToPoint, key, from, place_));
  op.owner = this;
  {
    auto lock = worker_.lock();
    PIPER_CHECK_OK(check(lock, key));
    PIPER_CHECK_OK(route(lock, from));
  }
  void* data = sink.allocate(bytes);
  if (!data && bytes > 0)
    return refused_error(self_, from, key, bytes);
  {
    auto lock = worker_.lock();
    PIPER_CHECK_OK(check(lock, key));
    PIPER_TRY(UcxRoute at, route(lock, from));
    op.connection = at.connection;
    worker_.post_recv(lock, op, data, bytes);
  }
  const bool in_time = worker_.wait(op.done, deadline);
  if (!in_time)
    worker_.end({&op, 1});
  return outcome(op, from, key, bytes, !in_time);
}

Result<void> UcxEndpoint::all_reduce(std::span<const DeviceIndex> group, const Key& key, void* data,
                                     size_t count, ir::DType dtype, Deadline deadline) {
  return collective({CollectiveKind::AllReduce, group, key, data, count, dtype}, deadline);
}

Result<void> UcxEndpoint::reduce_scatter(std::span<const DeviceIndex> group, const Key& key,
                                         void* data, size_t count, ir::DType dtype,
                                         Deadline deadline) {
  return collective({CollectiveKind::ReduceScatter, group, key, data, count, dtype}, deadline);
}

Result<void> UcxEndpoint::all_gather(std::span<const DeviceIndex> group, const Key& key, void* data,
                                     size_t count, ir::DType dtype, Deadline deadline) {
  return collective({CollectiveKind::AllGather, group, key, data, count, dtype}, deadline);
}

Result<void> UcxEndpoint::flush(Deadline deadline) {
  Event left;
  auto lock = worker_.lock();
  PIPER_CHECK_OK(check(lock));
  if (pending_ == 0)
    return {};
  flushing_.push_back(&left);
  lock.unlock();
  worker_.wait(left, deadline);
  lock.lock();
  std::erase(flushing_, &left);
  PIPER_CHECK_OK(check(lock));
  if (pending_ == 0 || left.is_set())
    return {};
  return Error{ErrorKind::Timeout,
               fmt::format("{} sends have not left before the deadline", pending_),
               fmt::format("device {}", self_), "their receivers hang, are slow, or do not exist"};
}

void UcxEndpoint::abort(Error reason) {
  auto lock = worker_.lock();
  if (!aborted_)
    aborted_ = std::move(reason);
  worker_.abandon(lock, this);
  for (Event* event : flushing_)
    worker_.wake(*event);
}

void UcxEndpoint::reset(ir::Epoch oldest) {
  auto lock = worker_.lock();
  aborted_.reset();
  failed_.reset();
  if (oldest > oldest_) {
    oldest_ = oldest;
    stale_ = stale_tags(oldest, place_);
  }
  tick(lock);
}

void UcxEndpoint::tick(const Lock& lock) {
  for (const TagPattern& pattern : stale_)
    worker_.drop_messages(lock, pattern);
}

} // namespace piper::transport
