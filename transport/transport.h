// The transport interface: tensors between devices, paired by key, each wait with a deadline.
// Backends repeat one set of file names: loopback/ (one process), ucx/ (processes and hosts).
// throttled/ puts a slow link before any of them.
//
// Threads: an Endpoint may be used from several threads at once; operations with different keys do
// not order each other. `abort` may be called from anywhere, also while others wait.
#pragma once

#include "ir/ids.h"
#include "ir/result.h"
#include "ir/tensor_type.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace piper::transport {

using ir::DeviceIndex;
using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Pairs a send with its receive between two devices, or the members of a collective. Two
/// operations of one key between the same devices match in the order in which they were issued.
struct Key {
  ir::Epoch epoch = 0;
  uint32_t edge = 0;
  int32_t microbatch = ir::kNoMicrobatch;
  bool operator==(const Key&) const = default;
};

/// Bytes and what keeps them alive. Releasing it drops one reference; never allocates.
class Payload {
public:
  Payload() = default;
  /// `release(token)` is called once when the payload is dropped, unless `take_token` came first.
  Payload(void* data, size_t bytes, void* token, void (*release)(void*))
      : data_(data), bytes_(bytes), token_(token), release_(release) {}
  Payload(Payload&& other) noexcept { swap(other); }
  Payload& operator=(Payload&& other) noexcept {
    Payload(std::move(other)).swap(*this);
    return *this;
  }
  ~Payload() {
    if (release_)
      release_(token_);
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  /// The owner's token; the caller now has to release it.
  void* take_token() {
    release_ = nullptr;
    return std::exchange(token_, nullptr);
  }
  void swap(Payload& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(token_, other.token_);
    std::swap(release_, other.release_);
  }

private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  void* token_ = nullptr;
  void (*release_)(void*) = nullptr;
};

/// Where a receive puts what arrives. Exactly one of the two is called before `recv` returns ok.
class Sink {
public:
  virtual ~Sink() = default;
  /// The transport has to copy: memory for that many bytes, or null to refuse (recv then fails).
  virtual void* allocate(size_t bytes) = 0;
  /// The sender was in this process and hands over the tensor itself.
  virtual void adopt(Payload payload) = 0;
};

/// One device's end of the transport.
class Endpoint {
public:
  virtual ~Endpoint() = default;
  virtual DeviceIndex self() const = 0;

  /// Starts a send and returns; the payload is kept until it has left. A failure that comes later
  /// (a lost peer) fails `flush` and every operation after it.
  virtual Result<void> send(DeviceIndex to, const Key& key, Payload payload) = 0;

  /// Waits for the message with this key. `bytes` is what is expected; another size is an Internal
  /// error that names both. Timeout and DeviceLost name the peer and the key.
  virtual Result<void> recv(DeviceIndex from, const Key& key, size_t bytes, Sink& sink,
                            Deadline deadline) = 0;

  /// In place: every member ends with the sum over `group`, added in rank order, so that all
  /// members and all backends have the same bits. `group` lists the members by rank and holds
  /// self(). F32, F64 and I64.
  virtual Result<void> all_reduce(std::span<const DeviceIndex> group, const Key& key, void* data,
                                  size_t count, ir::DType dtype, Deadline deadline) = 0;
  /// `data` holds group.size() equal ranges; afterwards range i of rank i is the sum, the others
  /// are unspecified. `count` elements in all, a multiple of the group's size.
  virtual Result<void> reduce_scatter(std::span<const DeviceIndex> group, const Key& key,
                                      void* data, size_t count, ir::DType dtype,
                                      Deadline deadline) = 0;
  /// The reverse: range i is taken from rank i.
  virtual Result<void> all_gather(std::span<const DeviceIndex> group, const Key& key, void* data,
                                  size_t count, ir::DType dtype, Deadline deadline) = 0;

  /// Waits until everything sent so far has left and its payloads are released.
  virtual Result<void> flush(Deadline deadline) = 0;

  /// Wakes every waiter with `reason` and fails every later operation with it, until `reset`.
  virtual void abort(Error reason) = 0;
  /// Forgets the abort and drops every message of an epoch before `oldest`, arrived or not yet.
  virtual void reset(ir::Epoch oldest) = 0;

  /// Bytes handed to send and to collectives so far (what a wire would carry), for reports.
  virtual uint64_t bytes_sent() const = 0;
};

} // namespace piper::transport
