// What every backend's collectives share: their arguments, their checks, and how much they move.
#pragma once

#include "transport/transport.h"

namespace piper::transport {

enum class CollectiveKind : uint8_t { AllReduce, ReduceScatter, AllGather };

/// The arguments of one member. See Endpoint for what each kind does.
struct Collective {
  CollectiveKind kind;
  std::span<const DeviceIndex> group;
  Key key;
  void* data;
  size_t count;
  ir::DType dtype;

  size_t element() const { return static_cast<size_t>(ir::size_of(dtype)); }
  size_t bytes() const { return count * element(); }
  /// What a wire carries from one member: its share of a direct exchange.
  uint64_t wire_bytes() const;
  /// The rank of `self` in the group. Internal errors: not a member, listed twice, an element type
  /// that cannot be added, a count that the group's size does not divide.
  Result<size_t> check(DeviceIndex self) const;
};

} // namespace piper::transport
