#include "transport/loopback/inbox.h"

#include "transport/errors.h"

#include <algorithm>

namespace piper::transport {

Inbox::List& Inbox::bucket(DeviceIndex from, const Key& key) {
  uint64_t mix = (uint64_t{from} << 48) ^ (uint64_t{key.edge} << 20) ^
                 static_cast<uint32_t>(key.microbatch) ^ (uint64_t{key.epoch} << 10);
  mix *= 0x9e3779b97f4a7c15; // Fibonacci hashing: the top bits depend on all
  return buckets_[mix >> 56];
}

void Inbox::add_locked(List& list, DeviceIndex from, const Key& key, Payload payload,
                       Waiter* waiter) {
  if (free_.empty())
    free_.emplace_back();
  free_.front() = {from, key, std::move(payload), waiter};
  list.splice(list.end(), free_, free_.begin());
}

Result<void> Inbox::check_locked(const Key& key) const {
  if (aborted_)
    return *aborted_;
  if (key.epoch < oldest_)
    return stale_error(self_, key, oldest_);
  return {};
}

Result<void> Inbox::check() {
  std::lock_guard lock(mutex_);
  return aborted_ ? Result<void>(*aborted_) : Result<void>();
}

Result<void> Inbox::check(const Key& key) {
  std::lock_guard lock(mutex_);
  return check_locked(key);
}

void Inbox::put(DeviceIndex from, const Key& key, Payload payload) {
  // A dropped payload is released after the lock: that is the caller's code.
  std::unique_lock lock(mutex_);
  if (key.epoch < oldest_) {
    lock.unlock();
    return;
  }
  List& list = bucket(from, key);
  auto waiting = std::find_if(list.begin(), list.end(), [&](const Entry& e) {
    return e.waiter && e.from == from && e.key == key;
  });
  if (waiting == list.end())
    return add_locked(list, from, key, std::move(payload), nullptr);
  Waiter* waiter = waiting->waiter;
  free_.splice(free_.begin(), list, waiting);
  waiter->payload = std::move(payload);
  lock.unlock();
  waiter->event.set();
}

Result<Payload> Inbox::take(DeviceIndex from, const Key& key, Deadline deadline) {
  std::unique_lock lock(mutex_);
  PIPER_CHECK_OK(check_locked(key));
  List& list = bucket(from, key);
  auto message = std::find_if(list.begin(), list.end(), [&](const Entry& e) {
    return !e.waiter && e.from == from && e.key == key;
  });
  if (message != list.end()) {
    Payload payload = std::move(message->payload);
    free_.splice(free_.begin(), list, message);
    return payload;
  }
  Waiter waiter;
  add_locked(list, from, key, {}, &waiter);
  lock.unlock();
  if (!waiter.event.wait_until(deadline, spinner_)) {
    lock.lock();
    auto mine =
        std::find_if(list.begin(), list.end(), [&](const Entry& e) { return e.waiter == &waiter; });
    if (mine != list.end()) {
      free_.splice(free_.begin(), list, mine);
      return timeout_error(self_, from, key);
    }
    lock.unlock();
    waiter.event.wait_until(Deadline::max(), spinner_); // it is being set right now
  }
  if (waiter.error)
    return std::move(*waiter.error);
  return std::move(waiter.payload);
}

void Inbox::abort(const Error& reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_)
    aborted_ = reason;
  for (List& list : buckets_)
    for (auto at = list.begin(); at != list.end();) {
      auto entry = at++;
      if (!entry->waiter)
        continue;
      Waiter* waiter = entry->waiter;
      free_.splice(free_.begin(), list, entry);
      waiter->error = reason;
      waiter->event.set();
    }
}

void Inbox::reset(ir::Epoch oldest) {
  List dropped; // released after the lock
  {
    std::lock_guard lock(mutex_);
    aborted_.reset();
    oldest_ = std::max(oldest_, oldest);
    for (List& list : buckets_)
      for (auto at = list.begin(); at != list.end();) {
        auto entry = at++;
        if (entry->key.epoch >= oldest_)
          continue;
        if (Waiter* waiter = entry->waiter) {
          free_.splice(free_.begin(), list, entry);
          waiter->error = stale_error(self_, entry->key, oldest_);
          waiter->event.set();
        } else {
          dropped.splice(dropped.end(), list, entry);
        }
      }
  }
  dropped.clear();
}

} // namespace piper::transport
