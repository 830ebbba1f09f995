// Graph: the global training DAG of one iteration. Immutable; made of regions that later graphs
// share where they are unchanged. Grows with the strategy, not with the number of replicas: a node
// placed on a group stands for its member on every device of the group.
#pragma once

#include "ir/fingerprint.h"
#include "ir/group.h"
#include "ir/ids.h"
#include "ir/model_spec.h"
#include "ir/result.h"
#include "ir/strategy.h"

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace piper::ir {

enum class Op : uint8_t {
  Input,     ///< rows of a model input, from the data source
  Forward,   ///< one call, or several fused ones
  Recompute, ///< a Forward again, for what it did not keep
  Seed,      ///< the gradient of the loss: 1 / (microbatches x replicas), the only scale there is
  Backward,  ///< gradients of inputs and of weights
  BackwardInput,  ///< gradients of inputs alone, and what the next one needs
  BackwardWeight, ///< gradients of weights, from what BackwardInput left
  Add,            ///< sum of the gradients that a value got from its readers, left to right
  Loss,           ///< hands the loss of a microbatch to the iteration's result
  Send,           ///< to the same rank of another group
  Recv,           ///< from the same rank of another group
  AllReduce,      ///< sum of the gradients of a bucket, or of a shard, over all who have the same
  ReduceScatter, ///< the same over a sub-group, each rank keeps its shard (adds it, where gradients
                 ///< are sharded)
  Commit,        ///< every device has its gradients: global norm and clip factor, or a barrier
  Update,        ///< the optimizer on the shard of a bucket that a rank owns; clears the gradients
  AllGather,     ///< the updated shards of a bucket to every rank of a sub-group
  Gather,        ///< the parameters of a bucket, whole, from the ranks that keep shards of them
  Release,       ///< drops what Gather brought
  ZeroGrads,     ///< room for the gradients of a whole bucket, until its ReduceScatter
  Redistribute,  ///< a value from the layout of one group to that of another on the same devices
  Offload,       ///< moves what is kept for a backward to another memory
  Fetch,         ///< moves it back
  SendMirror,    ///< the gradients of what a rank of a bucket owns, to a mirror of it
  RecvMirror,    ///< takes them
  UpdateMirror,  ///< the optimizer on a mirror, as Update on what is mirrored
};
const char* to_string(Op op); ///< "F", "B", "BI", "BW", "send", …
std::optional<Op> parse_op(std::string_view text);

/// What runs calls of the model and therefore has chunks.
constexpr bool is_compute(Op op) {
  return op == Op::Forward || op == Op::Recompute || op == Op::Backward ||
         op == Op::BackwardInput || op == Op::BackwardWeight;
}
/// What computes activations.
constexpr bool goes_forward(Op op) {
  return op == Op::Forward || op == Op::Recompute;
}
/// What works on a bucket.
constexpr bool is_bucket_op(Op op) {
  return op == Op::AllReduce || op == Op::ReduceScatter || op == Op::Update ||
         op == Op::AllGather || op == Op::Gather || op == Op::Release || op == Op::ZeroGrads ||
         op == Op::SendMirror || op == Op::RecvMirror || op == Op::UpdateMirror;
}
/// What turns gradients of a call's outputs into those of its inputs.
constexpr bool goes_backward(Op op) {
  return op == Op::Backward || op == Op::BackwardInput;
}
/// What adds to gradients of parameters. BackwardInput does so for those of one dimension, whose
/// sums are cheap and would need as much memory as an activation to be made later.
constexpr bool adds_to_gradients(Op op) {
  return goes_backward(op) || op == Op::BackwardWeight;
}

enum class ValueKind : uint8_t {
  Activation,   ///< a model value
  Gradient,     ///< its gradient
  GradientPart, ///< what one reader (`part`) adds to the gradient
  Saved,        ///< what the forward of call `subject` keeps for its backward
  Deferred,     ///< what BackwardInput of call `subject` keeps for its BackwardWeight
  WeightGrad,   ///< call `subject` has added to its buckets' gradients (a token, no tensor)
  Reduced,      ///< bucket `subject` holds the summed gradients (a token); of sharded ones those
                ///< of window `part`
  Committed,    ///< the iteration will be kept (a token)
  Updated,      ///< the owned range of bucket `subject` is updated (a token)
  Gathered,     ///< bucket `subject` holds whole parameters, for the `part`-th time (a token)
  Zeroed,       ///< bucket `subject` has room for gradients, for the `part`-th time (a token)
  Scattered,    ///< as Reduced, but each sub-group has sums of its own (a token)
  Mirrored,     ///< the mirror of bucket `subject` on group `at` has its gradients (a token)
};

/// By a chunk, for a later pass of it; no tensor that others could read.
constexpr bool is_kept(ValueKind kind) {
  return kind == ValueKind::Saved || kind == ValueKind::Deferred;
}
/// To another memory and back, by Offload and Fetch.
constexpr bool is_movable(ValueKind kind) {
  return kind == ValueKind::Activation || is_kept(kind);
}
/// Where it is then, as the `part` of its ValueRef.
inline constexpr uint32_t kInPool = 0, kFetched = 1;

/// Names a value of one iteration. Does not depend on the order in which a graph was built.
struct ValueRef {
  ValueKind kind = ValueKind::Activation;
  uint32_t subject = 0;          ///< ValueId, CallId or BucketId, by kind
  uint32_t part = CallId::kNone; ///< the reading call of a GradientPart (one that reads a value
                                 ///< twice gives one part); which time, of a bucket's window;
                                 ///< of what is movable: kInPool, kFetched, or neither
  int32_t microbatch = kNoMicrobatch;
  GroupId at; ///< where this copy is; none before placement
  auto operator<=>(const ValueRef&) const = default;
};

/// Names a node. Does not depend on the order in which a graph was built.
struct NodeId {
  Op op = Op::Forward;
  ValueKind kind = ValueKind::Activation; ///< of what Send, Recv, Offload and Fetch move
  uint32_t subject = 0;                   ///< CallId (first call), ValueId or BucketId, by op
  uint32_t part = Id<void>::kNone;        ///< as in ValueRef, for Add / Send / Recv and windows
  int32_t microbatch = kNoMicrobatch;
  GroupId at;   ///< where it runs; none before placement
  GroupId peer; ///< of Send, SendMirror: where to; of Recv, RecvMirror, Redistribute: where from
  auto operator<=>(const NodeId&) const = default;
};

/// "this must come after `before`", because a directive says so.
struct TemporalEdge {
  NodeId before;
  int32_t directive = -1; ///< index into Graph::strategy; -1: the compiler's own
  auto operator<=>(const TemporalEdge&) const = default;
};

struct Node {
  NodeId id;
  std::vector<ValueRef> inputs;
  std::vector<ValueRef> outputs;
  std::vector<TemporalEdge> after;
  /// Of what is_compute: the calls, in forward order, cut into the chunks that autograd sees as one
  /// graph. Those of a microbatch agree on the chunks. One chunk of one call until `fuse`.
  std::vector<std::vector<CallId>> chunks;
  double scale = 1;       ///< of Seed
  std::string stream;     ///< empty until streams are assigned
  int32_t directive = -1; ///< that placed it; for errors
  bool operator==(const Node&) const = default;

  int32_t microbatch() const { return id.microbatch; }
};

/// Nodes that belong together (a segment and a pass, say) in a fixed order. Never changed once
/// made.
class Region {
public:
  Region(std::string name, std::vector<Node> nodes);
  const std::string& name() const { return name_; } ///< "layer=3 F"; unique in a graph
  const std::vector<Node>& nodes() const { return nodes_; }
  const Fingerprint& fingerprint() const { return fingerprint_; } ///< of name and nodes

private:
  std::string name_;
  std::vector<Node> nodes_;
  Fingerprint fingerprint_;
};
using RegionPtr = std::shared_ptr<const Region>;

/// Parameters that live in one flat storage on every device of `group`. Where its layout cuts them
/// (Group::parts), what follows is of one part.
struct Bucket {
  std::string name; ///< unique: "layer=3", "tied:tok.weight"
  GroupId group;    ///< every device that holds it
  DType dtype = DType::F32;
  std::vector<ParamId> params;  ///< in order
  std::vector<int64_t> offsets; ///< of each, in elements; aligned to kParamAlignment
  int64_t numel = 0;            ///< padded to a multiple of the copies x kParamAlignment
  /// Each `shards` copies in a row (Group::copy) are a sub-group. Copy i of the bucket owns shard
  /// s = i % shards, the elements [s, s+1) x numel / shards; it alone of its sub-group keeps that
  /// range of what is sharded:
  uint32_t shards = 1;          ///< 1: nothing is sharded
  bool shard_optimizer = false; ///< the optimizer's state (ZeRO-1; so where anything is sharded)
  bool shard_grads = false;     ///< the gradients (ZeRO-2)
  bool shard_params = false;    ///< the parameters (ZeRO-3)
  // What is kept of these arrays is in another memory.
  bool offload_optimizer = false; ///< the optimizer's state
  /// The parameters. Implies shard_params, also where there is one shard: they have windows too.
  bool offload_params = false;
  /// Groups of as many devices. Rank r of each keeps another copy of what rank r of `group` owns.
  std::vector<GroupId> mirrors;
  bool fused_update = false; ///< runs once its gradients are summed, and does not wait for Commit
  bool operator==(const Bucket&) const = default;

  int64_t shard_numel() const { return numel / shards; }
  int64_t shard_of(uint32_t copy) const { return copy % shards; }
};
/// Whether the bucket's shards go with its group and with what it says is sharded.
bool shards_fit(const Bucket& bucket, const Group& group);
/// Elements of a bucket: [begin, end).
struct ElementRange {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};
/// What a rank of the bucket's group updates, and what its mirrors have.
ElementRange owned_range(const Bucket& bucket, const Group& group, int rank);
/// How many ranks of the group own the same elements.
int64_t owners(const Bucket& bucket, const Group& group);
/// In elements. Keeps every parameter on a cache line of its own.
inline constexpr int64_t kParamAlignment = 16;

struct Graph {
  std::shared_ptr<const ModelSpec> model;
  std::shared_ptr<const Strategy> strategy; ///< expanded: no Schedule in it
  int64_t microbatches = 1;
  std::string microbatch_tag;         ///< empty before a split
  std::vector<std::vector<Tag>> tags; ///< of each call: annotations, then those of `tag`
  std::vector<Group> groups;
  std::vector<Bucket> buckets;
  std::vector<RegionPtr> regions;

  size_t node_count() const;
  /// Of everything above; equal graphs, equal fingerprints.
  Fingerprint fingerprint() const;
  std::string to_text() const;
  /// The inverse of to_text, given the model and the strategy it was made for.
  static Result<Graph> parse(std::string_view text, std::shared_ptr<const ModelSpec> model,
                             std::shared_ptr<const Strategy> strategy);
  /// Graphviz, a cluster a region.
  std::string to_dot() const;

  std::string name(const NodeId& id) const;    ///< "F attn3 @2 on g0"
  std::string name(const ValueRef& ref) const; ///< "d.attn3 @2 on g0"
  /// Rows that one device of the group works on in one microbatch.
  int64_t rows(GroupId at) const;
};

/// Whether the filter matches the node: see Filter for the tags that a node has. A fused node
/// matches if all its calls do. Nodes that are no compute match only by what they have: those of a
/// bucket have the tags that all calls using its parameters share. Input, Seed, Add and Loss follow
/// their calls and match nothing. Allocates nothing.
bool matches(const Filter& filter, const Graph& graph, const Node& node);
/// Whether the filter's terms on a call's own tags (annotations, `tag`, `call`) match; terms on
/// PASS and on the microbatch are ignored.
bool matches_call(const Filter& filter, const Graph& graph, CallId call);

/// Look-ups over one graph; valid as long as the graph is.
class GraphIndex {
public:
  explicit GraphIndex(const Graph& graph);
  const Node* node(const NodeId& id) const;                        ///< null if there is none
  const Node* producer(const ValueRef& ref) const;                 ///< null if there is none
  const std::vector<const Node*>& nodes() const { return nodes_; } ///< in region order

private:
  struct Hash {
    size_t operator()(const NodeId& id) const noexcept;
    size_t operator()(const ValueRef& ref) const noexcept;
  };
  std::vector<const Node*> nodes_;
  std::unordered_map<NodeId, const Node*, Hash> by_id_;
  std::unordered_map<ValueRef, const Node*, Hash> by_value_;
};

} // namespace piper::ir
