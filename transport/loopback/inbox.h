// The messages that have come for one device, and the threads that wait for more.
#pragma once

#include "transport/wait.h"

#include <array>
#include <list>
#include <mutex>
#include <optional>

namespace piper::transport {

/// Safe for any number of threads. Allocates only when it holds more entries than ever before, and
/// more than 64.
class Inbox {
public:
  Inbox(DeviceIndex self, Spinner& spinner) : self_(self), spinner_(spinner), free_(64) {}

  /// Hands the message to the first who waits for it, or keeps it. One of an ended epoch is
  /// dropped.
  void put(DeviceIndex from, const Key& key, Payload payload);
  /// The first message with this key, waited for. Timeout, the reason of an abort, or stale_error.
  Result<Payload> take(DeviceIndex from, const Key& key, Deadline deadline);

  void abort(const Error& reason);
  void reset(ir::Epoch oldest);
  /// The reason of an abort, if there was one; with a key also stale_error.
  Result<void> check();
  Result<void> check(const Key& key);

private:
  struct Waiter {
    Event event;
    Payload payload;
    std::optional<Error> error;
  };
  /// A message, or a thread that waits for one. A key has entries of one kind at a time.
  struct Entry {
    DeviceIndex from = 0;
    Key key;
    Payload payload;
    Waiter* waiter = nullptr;
  };
  using List = std::list<Entry>; // nodes only ever move between lists

  List& bucket(DeviceIndex from, const Key& key);
  void add_locked(List& list, DeviceIndex from, const Key& key, Payload payload, Waiter* waiter);
  Result<void> check_locked(const Key& key) const;

  const DeviceIndex self_;
  Spinner& spinner_;
  std::mutex mutex_;
  std::array<List, 256> buckets_;
  List free_;
  std::optional<Error> aborted_;
  ir::Epoch oldest_ = 0;
};

} // namespace piper::transport
