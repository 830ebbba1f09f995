// The 64-bit tag by which UCX pairs messages.
//
//   63 … 54  epoch modulo 1024     51 … 32  edge             19 … 6  sender
//   53 … 52  kind                  31 … 20  microbatch + 1    5 … 0  receiver's place in its
//   process
#pragma once

#include "transport/transport.h"

#include <vector>

namespace piper::transport {

/// A message between two devices, or one of the two phases of a collective.
enum class TagKind : uint64_t { PointToPoint = 0, Scatter = 1, Gather = 2 };

inline constexpr uint64_t kTagEpochs = 1024;
inline constexpr uint64_t kTagMaxEdge = (1u << 20) - 1;
inline constexpr int64_t kTagMaxMicrobatch = (1 << 12) - 2;
inline constexpr uint64_t kTagMaxDevice = (1u << 14) - 1;
inline constexpr uint64_t kTagMaxPlaces = 1u << 6; ///< devices of one process

/// Internal error if a part of the key has no room.
Result<uint64_t> make_tag(TagKind kind, const Key& key, DeviceIndex sender, uint64_t place);

/// Matches tags with `tag & mask == value`.
struct TagPattern {
  uint64_t value = 0;
  uint64_t mask = 0;
};
/// Patterns that together match what is for `place` and of an ended epoch: the 512 before `oldest`
/// (the 512 from there on are alive).
std::vector<TagPattern> stale_tags(ir::Epoch oldest, uint64_t place);

} // namespace piper::transport
