// Plan: what one role does in an iteration. Immutable, numbered by epoch, printable. Devices of one
// role share a plan; peers are named relative to it ("the same rank of group g1").
#pragma once

#include "ir/graph.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::ir {

enum class PlanKind : uint8_t {
  Train,   ///< an iteration of training
  Eval,    ///< forward and loss alone, on held-out rows
  Migrate, ///< moves state from one epoch's buckets to the next one's
};
const char* to_string(PlanKind kind); ///< "train", "eval", "migrate"
std::optional<PlanKind> parse_plan_kind(std::string_view text);

/// The arrays of a bucket.
enum class StateKind : uint8_t { Param, Grad, Moment1, Moment2, Step };
const char* to_string(StateKind kind); ///< "param", "grad", "moment1", "moment2", "step"
std::optional<StateKind> parse_state_kind(std::string_view text);
/// Whether each rank keeps only its own range of the bucket's array.
constexpr bool is_sharded(const Bucket& bucket, StateKind kind) {
  switch (kind) {
  case StateKind::Param:
    return bucket.shard_params;
  case StateKind::Grad:
    return bucket.shard_grads;
  case StateKind::Moment1:
  case StateKind::Moment2:
    return bucket.shard_optimizer;
  case StateKind::Step:
    break;
  }
  return false;
}

/// A contiguous piece of a bucket's array. `begin` counts elements from the bucket's start, also
/// where a rank or a mirror keeps only its own range of the array.
struct StateRange {
  Epoch epoch = 0;
  BucketId bucket;
  StateKind kind = StateKind::Param;
  int64_t begin = 0, count = 0;
  uint32_t mirror = 0; ///< 0: as the bucket's group keeps it; k: as the k-th of its mirrors does
  bool operator==(const StateRange&) const = default;
};

enum class Opcode : uint8_t {
  // As the nodes of the same name.
  Input,
  Forward,
  Recompute,
  Seed,
  Backward,
  BackwardInput,
  BackwardWeight,
  Add,
  Loss,
  Send,
  Recv,
  AllReduce,
  ReduceScatter,
  Commit,
  Update,
  AllGather,
  Gather,
  Release,
  ZeroGrads,
  Redistribute,
  Offload,
  Fetch,
  SendMirror,
  RecvMirror,
  UpdateMirror,
  // Of migration plans.
  CopyState, ///< within the device: `source` to `target`
  SendState, ///< `source` to device `device`
  RecvState, ///< `target` from device `device`
};
const char* to_string(Opcode opcode); ///< as Op, and "copy-state", "send-state", "recv-state"
std::optional<Opcode> parse_opcode(std::string_view text);
// As of the nodes.
constexpr bool is_node(Opcode op) {
  return op < Opcode::CopyState;
}
constexpr bool is_bucket_op(Opcode op) {
  return is_node(op) && is_bucket_op(static_cast<Op>(op));
}
constexpr bool is_compute(Opcode op) {
  return is_node(op) && is_compute(static_cast<Op>(op));
}
constexpr bool goes_forward(Opcode op) {
  return is_node(op) && goes_forward(static_cast<Op>(op));
}
constexpr bool goes_backward(Opcode op) {
  return is_node(op) && goes_backward(static_cast<Op>(op));
}
constexpr bool adds_to_gradients(Opcode op) {
  return is_node(op) && adds_to_gradients(static_cast<Op>(op));
}

struct Instruction {
  Opcode op = Opcode::Forward;
  uint32_t stream = 0; ///< index into Plan::streams
  int32_t microbatch = kNoMicrobatch;
  std::vector<std::vector<CallId>> chunks; ///< of what is_compute: see Node::chunks
  std::vector<SlotId> inputs;  ///< tensors read. Backward, BackwardInput: one Saved slot a chunk
                               ///< first (forward order), then gradients of what the chunks give
                               ///< out. BackwardWeight: one Deferred slot a chunk. Add: the parts,
                               ///< left to right. Redistribute: the value; of an all-to-all, unless
                               ///< it moves the counts themselves, then these as its source and as
                               ///< its target have them. Offload, Fetch: any number
  std::vector<SlotId> outputs; ///< tensors made. Forward, Recompute: one Saved slot a chunk first,
                               ///< then what others read. BackwardInput: one Deferred slot a chunk
                               ///< first (none for a chunk without parameters), then gradients.
                               ///< Offload, Fetch: one for each input
  std::vector<SlotId> frees;   ///< slots that no later instruction reads: dropped when done
  std::vector<BucketId> buckets; ///< of what is_bucket_op: one. Commit: all that the role holds and
                                 ///< whose updates wait for it
  GroupId group;                 ///< of a collective; of Send, Recv, SendMirror and RecvMirror the
                                 ///< peer's group; of Redistribute where the value comes from
  GroupId self;                  ///< the group as whose member the device runs it
  EdgeId edge;                   ///< of what goes over the transport
  double scale = 1;              ///< of Seed
  StateRange source, target;     ///< of CopyState, SendState, RecvState
  DeviceIndex device = 0;        ///< of SendState, RecvState: the peer
  std::vector<EventId> waits;    ///< before it starts, beside its stream's order
  EventId records;               ///< when it is done; none if nobody waits
  int32_t directive = -1;        ///< of the strategy; for errors
  bool operator==(const Instruction&) const = default;
};

struct Slot {
  ValueRef value;
  TensorType type; ///< of a tensor; of a Saved slot without meaning
  bool operator==(const Slot&) const = default;
};

struct Plan {
  std::vector<std::string> streams; ///< "compute", "recv", "reduce", …
  std::vector<Slot> slots;
  uint32_t events = 0;
  /// In issue order. Those of one stream run in this order; the order across streams is one that
  /// never has to wait for a later instruction, also where sends block.
  std::vector<Instruction> instructions;
  bool operator==(const Plan&) const = default;
};

/// The groups that a role's devices are members of. Devices of one role have the same groups, and
/// in each the same place in its blocks.
struct Role {
  std::string name; ///< "g0", "g0+g2"
  std::vector<GroupId> groups;
  bool operator==(const Role&) const = default;
};

/// Those members of a group that take part in one collective: of its ranks `count`, from `first` on
/// every `stride`-th.
struct Team {
  GroupId group;
  uint32_t first = 0, stride = 1, count = 1;
  auto operator<=>(const Team&) const = default;

  /// The place of a rank among the members; also of a rank of another team that is cut alike.
  uint32_t place_of(int rank) const { return static_cast<uint32_t>(rank) / stride % count; }
};

/// All plans of one epoch and the table that says who runs which.
struct PlanSet {
  PlanKind kind = PlanKind::Train;
  Epoch epoch = 0;
  Fingerprint model; ///< of the ModelSpec
  int64_t batch = 0; ///< rows of the global batch
  int64_t microbatches = 1;
  std::vector<Group> groups;
  GroupId world; ///< every device that has a plan; what Commit spans
  std::vector<Bucket> buckets;
  std::vector<std::string> edges;      ///< what each EdgeId moves, for errors
  std::vector<std::string> directives; ///< Strategy::describe of each, for errors
  std::vector<Role> roles;
  std::vector<Plan> plans; ///< of each role
  std::map<DeviceIndex, RoleId> devices;

  RoleId role_of(DeviceIndex device) const; ///< none for an idle device
  /// The rank of the device in the group, -1 if it is no member.
  int rank_in(GroupId group, DeviceIndex device) const;
  /// Who takes part in a collective that this rank of its group runs: of what is done to a bucket
  /// its sub-group, but of AllReduce those of all sub-groups that have the rank's shard.
  Team team_of(const Instruction& collective, int rank) const;
  /// The sub-group of a rank of the bucket's group, by shard.
  Team sub_group(const Bucket& bucket, int rank) const;
  std::vector<DeviceIndex> members(const Team& team) const; ///< by rank
  /// Of each microbatch, the devices that compute its loss, by rank.
  std::vector<std::vector<DeviceIndex>> loss_order() const;
  /// Rows that one rank of the group works on in one microbatch, and the first of them in the
  /// global batch.
  int64_t rows(GroupId group) const;
  int64_t first_row(GroupId group, int rank, int32_t microbatch) const;
  /// "F attn3..mlp3 @2", with names from the model where it is given.
  std::string name(RoleId role, const Instruction& instruction,
                   const ModelSpec* model = nullptr) const;

  std::string to_text(const ModelSpec* model = nullptr) const; ///< with names as comments
  static Result<PlanSet> parse(std::string_view text);
  bool operator==(const PlanSet&) const = default;
};

} // namespace piper::ir
