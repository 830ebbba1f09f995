// Group: the devices that a node stands for, and how they share what is on them.
//
// The ranks of a group are a mesh in row-major order: blocks of `ways` consecutive ranks work on
// the same rows of the batch, each in its own way; the k-th ranks of all blocks do the same on
// other rows. Several groups may have the same devices and ways and differ in the layout alone:
// what a call reads and what it makes may be on two of them, and moving a value from one to the
// other is a collective within each block.
#pragma once

#include "ir/ids.h"
#include "ir/model_spec.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace piper::ir {

/// What a rank has of its block's values, or runs of its block's calls.
enum class Layout : uint8_t {
  Whole,   ///< all of it: each rank of a block does the same
  Partial, ///< a summand of it
  Tokens,  ///< its piece of the dimension after the rows (sequence parallel, arXiv 2205.05198)
  Weights, ///< calls with its piece of their parameters, which read Whole values and make Partial
           ///< ones (tensor parallel, arXiv 1909.08053)
  Experts, ///< the rows that go to its experts, sorted by expert and then by the rank that they
           ///< come from (expert parallel, arXiv 2006.16668)
};
const char* to_string(Layout layout); ///< "whole", "partial", …
std::optional<Layout> parse_layout(std::string_view text);

/// Layout of the values that a call with layout `call` reads, and of the gradients of those that it
/// makes.
constexpr Layout reads(Layout call) {
  return call == Layout::Weights ? Layout::Whole : call;
}
/// Layout of the values that a call with layout `call` makes, and of the gradients of those that it
/// reads.
constexpr Layout makes(Layout call) {
  return call == Layout::Weights ? Layout::Partial : call;
}

/// Layout of the bucket that holds a parameter of a call with layout `call`: what is not cut has
/// other gradients on each rank of a block where the call works on a piece.
constexpr Layout home_of(Layout call, const ModelParam& param) {
  return call == Layout::Weights && param.cut < 0 ? Layout::Partial : call;
}

struct Group {
  std::vector<DeviceIndex> devices; ///< by rank
  bool replicated = false;          ///< blocks work on shares of the batch of their own
  uint32_t ways = 1;                ///< ranks of a block
  Layout layout = Layout::Whole;
  uint32_t outside = 1; ///< Experts: `ways` of what is around them, in which ranks share rows
  bool operator==(const Group&) const = default;

  size_t size() const { return devices.size(); }
  /// Into how many shares the group cuts the rows of a microbatch. Of Experts: as around them.
  int64_t shares() const;
  /// Which share a rank works on.
  int64_t share(int rank) const;

  // A bucket on the group. Ranks that hold the same part of its parameters, and whose gradients are
  // summed, are its copies.
  uint32_t parts() const { ///< into which its parameters are cut
    return layout == Layout::Weights || layout == Layout::Experts ? ways : 1;
  }
  uint32_t part(int rank) const { return static_cast<uint32_t>(rank) % parts(); }
  /// Ranks whose gradients are summed: where each rank of a block has the same, only one of it.
  uint32_t copies() const;
  uint32_t copy(int rank) const; ///< the rank's place among them
  /// Ranks from one copy to the next.
  uint32_t copy_stride() const { return static_cast<uint32_t>(size()) / copies(); }
  /// Whether the rank's gradients count in a global norm: those of one rank of a Whole block do.
  bool counts(int rank) const {
    return layout != Layout::Whole || static_cast<uint32_t>(rank) % ways == 0;
  }

  std::vector<DeviceIndex> block_of(int rank) const; ///< the devices of its block, by rank
  bool same_blocks(const Group& other) const {
    return devices == other.devices && ways == other.ways;
  }
  /// The group on the same devices where values are Whole; of Experts, the one around them.
  Group whole() const;
};

/// What a collective within a block does to move a value from one layout to another.
enum class Move : uint8_t { Slice, AllReduce, ReduceScatter, AllGather, AllToAll };
/// None where there is no such move. An all-to-all happens in the blocks of the experts: of ranks
/// around them that share rows one sends each row, and all get what comes back.
std::optional<Move> move_between(const Group& from, const Group& to);

/// The type of a value as one rank of the group has it. Rows are those of the rank's share.
TensorType type_on(const Group& group, const ModelValue& value);
/// The type of a parameter as one rank of a bucket's group has it.
TensorType type_on(const Group& group, const ModelParam& param);

} // namespace piper::ir
