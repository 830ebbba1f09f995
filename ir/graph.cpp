#include "ir/graph.h"

#include "ir/hash.h"
#include "ir/names.h"

#include <array>
#include <bit>

namespace piper::ir {

namespace {

constexpr std::array kOps = {"input",
                             "F",
                             "R",
                             "seed",
                             "B",
                             "BI",
                             "BW",
                             "add",
                             "loss",
                             "send",
                             "recv",
                             "all-reduce",
                             "reduce-scatter",
                             "commit",
                             "update",
                             "all-gather",
                             "gather",
                             "release",
                             "zero-grads",
                             "redistribute",
                             "offload",
                             "fetch",
                             "send-mirror",
                             "recv-mirror",
                             "update-mirror"};
static_assert(kOps.size() == static_cast<size_t>(Op::UpdateMirror) + 1);

/// A compact, self-delimiting encoding of nodes; all that a fingerprint needs.
class Encoder {
public:
  void word(uint32_t value) {
    for (int i = 0; i < 4; ++i)
      bytes_ += static_cast<char>(value >> (8 * i));
  }
  void word64(uint64_t value) {
    word(static_cast<uint32_t>(value));
    word(static_cast<uint32_t>(value >> 32));
  }
  void string(std::string_view text) {
    word(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  void add(const NodeId& id) {
    word(static_cast<uint32_t>(id.op) << 8 | static_cast<uint32_t>(id.kind));
    word(id.subject);
    word(id.part);
    word(static_cast<uint32_t>(id.microbatch));
    word(id.at.value);
    word(id.peer.value);
  }
  void add(const ValueRef& ref) {
    word(static_cast<uint32_t>(ref.kind));
    word(ref.subject);
    word(ref.part);
    word(static_cast<uint32_t>(ref.microbatch));
    word(ref.at.value);
  }
  void add(const TemporalEdge& edge) {
    add(edge.before);
    word(static_cast<uint32_t>(edge.directive));
  }
  void add(CallId call) { word(call.value); }
  template <class Item> void add(const std::vector<Item>& items) {
    word(static_cast<uint32_t>(items.size()));
    for (const Item& item : items)
      add(item);
  }
  void add(const Node& node) {
    add(node.id);
    add(node.inputs);
    add(node.outputs);
    add(node.after);
    add(node.chunks);
    word64(std::bit_cast<uint64_t>(node.scale));
    string(node.stream);
    word(static_cast<uint32_t>(node.directive));
  }
  Fingerprint finish() const { return fingerprint(bytes_); }

private:
  std::string bytes_;
};

} // namespace

const char* to_string(Op op) {
  return kOps[static_cast<size_t>(op)];
}

std::optional<Op> parse_op(std::string_view text) {
  for (size_t i = 0; i < kOps.size(); ++i)
    if (text == kOps[i])
      return static_cast<Op>(i);
  return std::nullopt;
}

Region::Region(std::string name, std::vector<Node> nodes)
    : name_(std::move(name)), nodes_(std::move(nodes)) {
  Encoder encoder;
  encoder.string(name_);
  encoder.add(nodes_);
  fingerprint_ = encoder.finish();
}

bool shards_fit(const Bucket& bucket, const Group& group) {
  return bucket.shards >= 1 && group.copies() % bucket.shards == 0 &&
         bucket.shard_optimizer == (bucket.shards > 1 || bucket.offload_params) &&
         (bucket.shards > 1 || !bucket.shard_grads) &&
         (bucket.shard_optimizer || !bucket.shard_params);
}

ElementRange owned_range(const Bucket& bucket, const Group& group, int rank) {
  const int64_t shard = bucket.shard_of(group.copy(rank));
  return {shard * bucket.shard_numel(), (shard + 1) * bucket.shard_numel()};
}

int64_t owners(const Bucket& bucket, const Group& group) {
  return static_cast<int64_t>(group.size()) / (int64_t{group.parts()} * bucket.shards);
}

size_t Graph::node_count() const {
  size_t count = 0;
  for (const RegionPtr& region : regions)
    count += region->nodes().size();
  return count;
}

Fingerprint Graph::fingerprint() const {
  Hasher hasher;
  hasher.add(model ? model->fingerprint() : Fingerprint{});
  hasher.add(strategy ? strategy->to_json() : std::string());
  hasher.add(static_cast<uint64_t>(microbatches)).add(microbatch_tag);
  hasher.add(tags.size());
  for (const auto& list : tags) {
    hasher.add(list.size());
    for (const Tag& tag : list)
      hasher.add(tag.name).add(static_cast<uint64_t>(tag.index));
  }
  std::string state;
  text::append_groups(state, groups);
  text::append_buckets(state, buckets, nullptr);
  hasher.add(state).add(regions.size());
  for (const RegionPtr& region : regions)
    hasher.add(region->fingerprint());
  return hasher.finish();
}

std::string Graph::name(const NodeId& id) const {
  std::string out;
  text::append_id(out, {model.get(), &buckets}, id);
  return out;
}

std::string Graph::name(const ValueRef& ref) const {
  std::string out;
  text::append_ref(out, {model.get(), &buckets}, ref);
  return out;
}

int64_t Graph::rows(GroupId at) const {
  const int64_t rows = model->batch / microbatches;
  return at ? rows / groups[at.value].shares() : rows;
}

size_t GraphIndex::Hash::operator()(const NodeId& id) const noexcept {
  return IdHash()(id);
}
size_t GraphIndex::Hash::operator()(const ValueRef& ref) const noexcept {
  return IdHash()(ref);
}

GraphIndex::GraphIndex(const Graph& graph) {
  const size_t count = graph.node_count();
  nodes_.reserve(count);
  by_id_.reserve(count);
  by_value_.reserve(count);
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes()) {
      nodes_.push_back(&node);
      by_id_.emplace(node.id, &node);
      for (const ValueRef& output : node.outputs)
        by_value_.emplace(output, &node);
    }
}

const Node* GraphIndex::node(const NodeId& id) const {
  auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : found->second;
}

const Node* GraphIndex::producer(const ValueRef& ref) const {
  auto found = by_value_.find(ref);
  return found == by_value_.end() ? nullptr : found->second;
}

} // namespace piper::ir
