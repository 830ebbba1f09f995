// Internal to ir/: hashes of ids, for look-ups over large graphs.
#pragma once

#include "ir/graph.h"

#include <cstddef>
#include <cstdint>

namespace piper::ir {

inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 32);
}

struct IdHash {
  size_t operator()(const NodeId& id) const noexcept {
    uint64_t hash = mix(static_cast<uint64_t>(id.op) << 8 | static_cast<uint64_t>(id.kind),
                        static_cast<uint64_t>(id.subject) << 32 | id.part);
    hash = mix(hash, static_cast<uint32_t>(id.microbatch));
    return mix(hash, static_cast<uint64_t>(id.at.value) << 32 | id.peer.value);
  }
  size_t operator()(const ValueRef& ref) const noexcept {
    uint64_t hash =
        mix(static_cast<uint64_t>(ref.kind), static_cast<uint64_t>(ref.subject) << 32 | ref.part);
    return mix(hash,
               static_cast<uint64_t>(static_cast<uint32_t>(ref.microbatch)) << 32 | ref.at.value);
  }
};

} // namespace piper::ir
