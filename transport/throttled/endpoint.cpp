#include "transport/throttled/endpoint.h"

#include "transport/errors.h"
#include "transport/prompt.h"

#include <algorithm>
#include <fmt/format.h>

namespace piper::transport {

ThrottledEndpoint::ThrottledEndpoint(Endpoint& inner, uint32_t devices, Link link)
    : inner_(inner), devices_(devices), port_(link), thread_([this] { deliver(); }) {}

ThrottledEndpoint::~ThrottledEndpoint() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  queued_.notify_one();
  thread_.join();
}

void ThrottledEndpoint::deliver() {
  wake_promptly();
  std::unique_lock lock(mutex_);
  for (;;) {
    queued_.wait(lock, [&] { return stop_ || !underway_.empty(); });
    if (underway_.empty())
      return;
    if (const Deadline due = underway_.front().due; !stop_ && Clock::now() < due) {
      queued_.wait_until(lock, due);
      continue; // an abort may have emptied the queue meanwhile
    }
    Message message = std::move(underway_.front());
    underway_.pop_front();
    handing_over_ = true;
    lock.unlock();
    Result<void> sent = inner_.send(message.to, message.key, std::move(message.payload));
    lock.lock();
    handing_over_ = false;
    if (!sent.ok() && !refused_locked(message.key) && !failed_)
      failed_ = std::move(sent).error();
    changed_.notify_all();
  }
}

Result<void> ThrottledEndpoint::send(DeviceIndex to, const Key& key, Payload payload) {
  if (to >= devices_)
    return unknown_device_error(self(), to);
  {
    std::lock_guard lock(mutex_);
    if (failed_)
      return *failed_;
    if (!refused_locked(key)) {
      sent_ += payload.bytes();
      const Deadline due = port_.reserve(Clock::now(), payload.bytes());
      underway_.push_back({due, to, key, std::move(payload)});
      if (underway_.size() == 1)
        queued_.notify_one();
      return {};
    }
  }
  return inner_.send(to, key, std::move(payload)); // which says why not
}

Result<void> ThrottledEndpoint::recv(DeviceIndex from, const Key& key, size_t bytes, Sink& sink,
                                     Deadline deadline) {
  return inner_.recv(from, key, bytes, sink, deadline);
}

Result<void> ThrottledEndpoint::cross(const Collective& call, Deadline deadline) {
  if (call.group.size() < 2 || !call.check(self()).ok())
    return {}; // `inner` says what is wrong
  std::unique_lock lock(mutex_);
  if (failed_)
    return *failed_;
  sent_ += call.wire_bytes();
  const Deadline arrival = port_.reserve(Clock::now(), call.wire_bytes(),
                                         call.kind == CollectiveKind::AllReduce ? 2 : 1);
  changed_.wait_until(lock, std::min(arrival, deadline),
                      [&] { return failed_ || refused_locked(call.key); });
  return failed_ ? Result<void>(*failed_) : Result<void>();
}

Result<void> ThrottledEndpoint::all_reduce(std::span<const DeviceIndex> group, const Key& key,
                                           void* data, size_t count, ir::DType dtype,
                                           Deadline deadline) {
  PIPER_CHECK_OK(cross({CollectiveKind::AllReduce, group, key, data, count, dtype}, deadline));
  return inner_.all_reduce(group, key, data, count, dtype, deadline);
}

Result<void> ThrottledEndpoint::reduce_scatter(std::span<const DeviceIndex> group, const Key& key,
                                               void* data, size_t count, ir::DType dtype,
                                               Deadline deadline) {
  PIPER_CHECK_OK(cross({CollectiveKind::ReduceScatter, group, key, data, count, dtype}, deadline));
  return inner_.reduce_scatter(group, key, data, count, dtype, deadline);
}

Result<void> ThrottledEndpoint::all_gather(std::span<const DeviceIndex> group, const Key& key,
                                           void* data, size_t count, ir::DType dtype,
                                           Deadline deadline) {
  PIPER_CHECK_OK(cross({CollectiveKind::AllGather, group, key, data, count, dtype}, deadline));
  return inner_.all_gather(group, key, data, count, dtype, deadline);
}

Result<void> ThrottledEndpoint::flush(Deadline deadline) {
  {
    std::unique_lock lock(mutex_);
    const auto left = [&] { return underway_.empty() && !handing_over_; };
    changed_.wait_until(lock, deadline, [&] { return aborted_ || failed_ || left(); });
    if (failed_)
      return *failed_;
    if (!aborted_ && !left())
      return Error{ErrorKind::Timeout,
                   fmt::format("{} sends have not left before the deadline", underway_.size()),
                   fmt::format("device {}", self()),
                   "the link is slow: give it more bandwidth, or wait longer"};
  }
  return inner_.flush(deadline);
}

void ThrottledEndpoint::abort(Error reason) {
  inner_.abort(std::move(reason));
  std::deque<Message> dropped; // released after the lock: that is the caller's code
  std::lock_guard lock(mutex_);
  aborted_ = true;
  dropped.swap(underway_);
  changed_.notify_all();
}

void ThrottledEndpoint::reset(ir::Epoch oldest) {
  std::deque<Message> dropped;
  {
    std::unique_lock lock(mutex_);
    // What the thread hands over now fails by the abort, not by itself.
    changed_.wait(lock, [&] { return !handing_over_; });
    aborted_ = false;
    failed_.reset();
    oldest_ = std::max(oldest_, oldest);
    const auto stale =
        std::stable_partition(underway_.begin(), underway_.end(),
                              [&](const Message& m) { return m.key.epoch >= oldest_; });
    dropped.assign(std::move_iterator(stale), std::move_iterator(underway_.end()));
    underway_.erase(stale, underway_.end());
    changed_.notify_all();
  }
  inner_.reset(oldest);
}

uint64_t ThrottledEndpoint::bytes_sent() const {
  std::lock_guard lock(mutex_);
  return sent_;
}

} // namespace piper::transport
