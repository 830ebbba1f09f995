// What a collective puts on the links, by algorithm. n members, B bytes (of an all-gather or a
// reduce-scatter: of the whole array), latency a:
//
//   direct        reduce-scatter: each member sends each other one B/n;  a + (n-1) message
//   ring          n-1 steps, B/n to the next member in each;             (n-1)(a + message)
//   halving       log2 n steps, B/2, B/4, … to ever nearer members;      log2 n (a + message)
//                 where n is no power of two: a ring
//   hierarchical  a ring within each unit, then rings across the units of the parts; where the
//                 units don't hold the same number of members: a ring over all
//
// An all-gather is the reverse; an all-reduce is a reduce-scatter and an all-gather. All send
// B (n-1)/n a member and half; they differ in latency, and in which links they use. An all-to-all,
// of which each member has B bytes, sends directly what the members are to have of each other.
#pragma once

#include "compiler/cost/cluster.h"

#include <span>

namespace piper::compiler {

enum class CollectiveKind : uint8_t { AllReduce, ReduceScatter, AllGather, AllToAll };

/// What a member exchanges at one level, in bytes for each byte of the collective.
struct PortUse {
  size_t level = 0;
  double out = 0, in = 0;
  bool operator==(const PortUse&) const = default;
};

/// A part of a collective that all members run at once, at one pace.
struct Phase {
  double latency = 0;                        ///< seconds before and beside the bytes
  double added = 0;                          ///< bytes that a member adds up, for each byte
  std::vector<std::vector<PortUse>> members; ///< by rank; levels ascending
};

struct Collective {
  Algorithm algorithm = Algorithm::Direct; ///< that was chosen
  std::vector<Phase> phases;               ///< one after the other; none for a single member

  /// Bytes that a member sends, for each byte.
  double sent(size_t rank) const;
  /// Seconds that `bytes` take on an idle cluster, `add` seconds a byte that is added up.
  double seconds(const Cluster& cluster, double bytes, double add) const;
};

/// `group` lists the members by rank. `bytes` and `add` matter to Auto alone.
Collective plan_collective(const Cluster& cluster, CollectiveKind kind, Algorithm algorithm,
                           std::span<const ir::DeviceIndex> group, double bytes = 0,
                           double add = 0);

} // namespace piper::compiler
