// Typed indices. An id says what it indexes, and two kinds never mix.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace piper::ir {

template <class Tag> struct Id {
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t value = kNone;

  constexpr Id() = default;
  constexpr explicit Id(uint64_t v) : value(static_cast<uint32_t>(v)) {}
  constexpr bool valid() const { return value != kNone; }
  constexpr explicit operator bool() const { return valid(); }
  constexpr auto operator<=>(const Id&) const = default;
};

using CallId = Id<struct CallTag>;     ///< a call of the model, in trace order
using ValueId = Id<struct ValueTag>;   ///< a tensor between calls of the model
using ParamId = Id<struct ParamTag>;   ///< a logical parameter; tied uses share one
using GroupId = Id<struct GroupTag>;   ///< an ordered list of devices that act as one placement
using BucketId = Id<struct BucketTag>; ///< a flat range of parameters that live and move together
using RoleId = Id<struct RoleTag>;     ///< devices that run the same plan
using SlotId = Id<struct SlotTag>;     ///< a place for a value in a bound plan
using EventId = Id<struct EventTag>;   ///< a completion that another stream waits for
using EdgeId = Id<struct EdgeTag>;     ///< the part of a transport key that names what is moved

/// A device of the job, 0 … N-1. Not a role: a role is what it does in one epoch.
using DeviceIndex = uint32_t;
/// Numbers the plan sets of a job. Every message and every transport key carries it.
using Epoch = uint32_t;
/// No microbatch: something that happens once per iteration.
inline constexpr int32_t kNoMicrobatch = -1;

} // namespace piper::ir

template <class Tag> struct std::hash<piper::ir::Id<Tag>> {
  size_t operator()(piper::ir::Id<Tag> id) const noexcept { return id.value; }
};
