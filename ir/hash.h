// Internal to ir/: hashes of ids, for look-ups over large graphs.
#pragma once

#include "ir/graph.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

/// Numbers by id, in one array with room for a known count: large graphs are looked up often, and
/// a node of a map per entry would cost more than the rest of the work.
template <class Key> class FlatIndex {
public:
  static constexpr uint32_t kNone = UINT32_MAX; ///< no number of an entry

  void reserve(size_t count) { slots_.assign(std::bit_ceil(2 * count + 1), {Key{}, kNone}); }
  /// The number that the key has now, and whether it is new. At most `reserve`d keys.
  std::pair<uint32_t, bool> emplace(const Key& key, uint32_t number) {
    Slot& slot = slots_[slot_of(key)];
    const bool fresh = slot.second == kNone;
    if (fresh)
      slot = {key, number};
    return {slot.second, fresh};
  }
  uint32_t find(const Key& key) const { return slots_[slot_of(key)].second; }

private:
  using Slot = std::pair<Key, uint32_t>;
  size_t slot_of(const Key& key) const {
    const size_t mask = slots_.size() - 1;
    size_t at = IdHash()(key) & mask;
    while (slots_[at].second != kNone && slots_[at].first != key)
      at = (at + 1) & mask;
    return at;
  }
  std::vector<Slot> slots_;
};

} // namespace piper::ir
