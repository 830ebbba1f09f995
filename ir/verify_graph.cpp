// The rules of graphs. All but cycles that a directive closes are defects of a pass.
#include "ir/hash.h"
#include "ir/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_set>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

class GraphVerifier {
public:
  explicit GraphVerifier(const Graph& graph) : graph_(graph) {}

  Result<void> run() {
    PIPER_CHECK_OK(tables());
    PIPER_CHECK_OK(index());
    for (uint32_t number = 0; number < nodes_.size(); ++number)
      PIPER_CHECK_OK(check(number));
    connect();
    return acyclic();
  }

private:
  Error wrong(std::string message) const {
    return internal_error(std::move(message), fmt::format("graph of {}", graph_.model->name));
  }
  Error wrong(const Node& node, std::string message) const {
    std::string where = graph_.name(node.id);
    if (node.directive >= 0 && graph_.strategy)
      where += ", " + graph_.strategy->describe(static_cast<size_t>(node.directive));
    return internal_error(std::move(message), std::move(where));
  }

  /// What stands beside the nodes: tags, groups, buckets.
  Result<void> tables() {
    if (!graph_.model)
      return internal_error("the graph has no model");
    const ModelSpec& model = *graph_.model;
    if (graph_.microbatches < 1)
      return wrong(fmt::format("there are {} microbatches", graph_.microbatches));
    if (graph_.tags.size() != model.calls.size())
      return wrong(fmt::format("{} calls have tags, the model has {}", graph_.tags.size(),
                               model.calls.size()));
    for (size_t i = 0; i < graph_.tags.size(); ++i) {
      const auto& own = model.calls[i].annotations;
      if (graph_.tags[i].size() < own.size() ||
          !std::equal(own.begin(), own.end(), graph_.tags[i].begin()))
        return wrong(fmt::format("the tags of call {} don't begin with its annotations",
                                 model.calls[i].name));
    }
    for (size_t g = 0; g < graph_.groups.size(); ++g) {
      std::vector<DeviceIndex> devices = graph_.groups[g].devices;
      if (devices.empty())
        return wrong(fmt::format("group g{} has no devices", g));
      std::sort(devices.begin(), devices.end());
      if (auto twice = std::adjacent_find(devices.begin(), devices.end()); twice != devices.end())
        return wrong(fmt::format("group g{} has device {} twice", g, *twice));
      if (const uint32_t ways = graph_.groups[g].ways; ways < 1 || devices.size() % ways != 0)
        return wrong(
            fmt::format("group g{} has {} devices in blocks of {}", g, devices.size(), ways));
      if (const Group& group = graph_.groups[g]; group.outside < 1 || group.ways % group.outside)
        return wrong(fmt::format("group g{} has blocks of {} around experts shared by {}", g,
                                 group.outside, group.ways));
    }
    std::unordered_set<std::string_view> names;
    std::vector<bool> held(model.params.size());
    for (const Bucket& bucket : graph_.buckets) {
      if (!names.insert(bucket.name).second)
        return wrong(fmt::format("two buckets are named \"{}\"", bucket.name));
      PIPER_CHECK_OK(check(bucket, held));
    }
    names.clear();
    for (const RegionPtr& region : graph_.regions)
      if (!names.insert(region->name()).second)
        return wrong(fmt::format("two regions are named \"{}\"", region->name()));
    return {};
  }

  Result<void> check(const Bucket& bucket, std::vector<bool>& held) const {
    if (!group_exists(bucket.group))
      return wrong(fmt::format("bucket {} is on g{}, which does not exist", bucket.name,
                               bucket.group.value));
    if (bucket.offsets.size() != bucket.params.size())
      return wrong(fmt::format("bucket {} has {} parameters and {} offsets", bucket.name,
                               bucket.params.size(), bucket.offsets.size()));
    static const Group kNowhere{.devices = {0}};
    const Group& group = bucket.group ? graph_.groups[bucket.group.value] : kNowhere;
    int64_t end = 0;
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const ParamId id = bucket.params[i];
      if (id.value >= held.size())
        return wrong(fmt::format("bucket {} holds parameter {}, which does not exist", bucket.name,
                                 id.value));
      const ModelParam& param = graph_.model->param(id);
      if (held[id.value])
        return wrong(fmt::format("parameter {} is in two buckets", param.name));
      held[id.value] = true;
      if (param.type.dtype != bucket.dtype)
        return wrong(fmt::format("parameter {} is {}, its bucket {} is {}", param.name,
                                 to_string(param.type.dtype), bucket.name,
                                 to_string(bucket.dtype)));
      if (bucket.offsets[i] < end || bucket.offsets[i] % kParamAlignment != 0)
        return wrong(fmt::format("parameter {} is at offset {} of bucket {}: it overlaps the one "
                                 "before or is not aligned to {}",
                                 param.name, bucket.offsets[i], bucket.name, kParamAlignment));
      end = bucket.offsets[i] + type_on(group, param).numel(1);
    }
    for (GroupId mirror : bucket.mirrors)
      if (!mirror || !group_exists(mirror) || graph_.groups[mirror.value].size() != group.size())
        return wrong(fmt::format("a mirror of bucket {} is on no group like its own", bucket.name));
    const int64_t ranks = group.copies();
    if (bucket.numel < end || bucket.numel % (ranks * kParamAlignment) != 0)
      return wrong(fmt::format("bucket {} has {} elements: its parameters need {}, padded to a "
                               "multiple of {}",
                               bucket.name, bucket.numel, end, ranks * kParamAlignment));
    if (!shards_fit(bucket, group))
      return wrong(
          fmt::format("bucket {} has {} shards for {} copies", bucket.name, bucket.shards, ranks));
    return {};
  }

  bool group_exists(GroupId group) const { return !group || group.value < graph_.groups.size(); }

  /// Fills the tables of ids and producers; each has one entry a name.
  Result<void> index() {
    size_t count = 0, outputs = 0, chunks = 0;
    for (const RegionPtr& region : graph_.regions)
      for (const Node& node : region->nodes()) {
        ++count;
        outputs += node.outputs.size();
        chunks += node.id.op == Op::Forward ? node.chunks.size() : 0;
      }
    nodes_.reserve(count);
    by_id_.reserve(count);
    producer_.reserve(outputs);
    forward_.reserve(chunks);
    chunks_.reserve(chunks);
    for (const RegionPtr& region : graph_.regions)
      for (const Node& node : region->nodes()) {
        const auto number = static_cast<uint32_t>(nodes_.size());
        nodes_.push_back(&node);
        if (!by_id_.emplace(node.id, number).second)
          return wrong(node, "two nodes have this id");
        if (node.id.op == Op::Forward)
          for (const auto& chunk : node.chunks)
            if (!chunk.empty())
              if (forward_.emplace(chunk_id(node, chunk), static_cast<uint32_t>(chunks_.size()))
                      .second)
                chunks_.push_back(&chunk);
        for (const ValueRef& output : node.outputs)
          if (auto [other, fresh] = producer_.emplace(output, number); !fresh)
            return wrong(node, fmt::format("{} is made twice: {} makes it too", graph_.name(output),
                                           graph_.name(nodes_[other]->id)));
      }
    return {};
  }

  /// The forward of its first call, were it not fused.
  static NodeId chunk_id(const Node& node, const std::vector<CallId>& chunk) {
    return {.op = Op::Forward,
            .subject = chunk[0].value,
            .microbatch = node.id.microbatch,
            .at = node.id.at};
  }

  size_t subjects(ValueKind kind) const {
    switch (kind) {
    case ValueKind::Activation:
    case ValueKind::Gradient:
    case ValueKind::GradientPart:
      return graph_.model->values.size();
    case ValueKind::Saved:
    case ValueKind::Deferred:
    case ValueKind::WeightGrad:
      return graph_.model->calls.size();
    case ValueKind::Reduced:
    case ValueKind::Updated:
    case ValueKind::Gathered:
    case ValueKind::Zeroed:
    case ValueKind::Scattered:
    case ValueKind::Mirrored:
      return graph_.buckets.size();
    case ValueKind::Committed:
      break;
    }
    return 1;
  }
  size_t subjects(const NodeId& id) const {
    switch (id.op) {
    case Op::Forward:
    case Op::Recompute:
    case Op::Backward:
    case Op::BackwardInput:
    case Op::BackwardWeight:
      return graph_.model->calls.size();
    case Op::AllReduce:
    case Op::ReduceScatter:
    case Op::Update:
    case Op::AllGather:
    case Op::Gather:
    case Op::Release:
    case Op::ZeroGrads:
    case Op::SendMirror:
    case Op::RecvMirror:
    case Op::UpdateMirror:
      return graph_.buckets.size();
    case Op::Commit:
      return 1;
    default:
      return subjects(id.kind);
    }
  }

  Result<void> check_ref(const Node& node, const ValueRef& ref) const {
    if (ref.subject >= subjects(ref.kind))
      return wrong(node, fmt::format("{} names what does not exist", graph_.name(ref)));
    const bool of_window = ref.kind == ValueKind::Reduced || ref.kind == ValueKind::Gathered ||
                           ref.kind == ValueKind::Zeroed || ref.kind == ValueKind::Scattered;
    if (ref.part != kNone && is_movable(ref.kind)) {
      if (ref.part > kFetched)
        return wrong(node, fmt::format("{} is in no memory", graph_.name(ref)));
      return check_place(node, ref.microbatch, ref.at);
    }
    if ((ref.part != kNone) != (ref.kind == ValueKind::GradientPart) && !of_window)
      return wrong(node, fmt::format("{} must name a part exactly if it is a part of a gradient",
                                     graph_.name(ref)));
    if (ref.part != kNone && !of_window && ref.part >= graph_.model->calls.size())
      return wrong(node,
                   fmt::format("{} is the part of a call that does not exist", graph_.name(ref)));
    return check_place(node, ref.microbatch, ref.at);
  }

  Result<void> check_place(const Node& node, int32_t microbatch, GroupId at) const {
    if (microbatch < kNoMicrobatch || microbatch >= graph_.microbatches)
      return wrong(node, fmt::format("microbatch {} of {}", microbatch, graph_.microbatches));
    if (!group_exists(at))
      return wrong(node, fmt::format("group g{} of {}", at.value, graph_.groups.size()));
    return {};
  }

  /// Also notes the edges that end at the node.
  Result<void> check(uint32_t number) {
    const Node& node = *nodes_[number];
    if (node.id.subject >= subjects(node.id))
      return wrong(node, "the node works on what does not exist");
    PIPER_CHECK_OK(check_place(node, node.id.microbatch, node.id.at));
    PIPER_CHECK_OK(check_place(node, node.id.microbatch, node.id.peer));
    PIPER_CHECK_OK(check_directive(node, node.directive));
    PIPER_CHECK_OK(check_chunks(node));
    PIPER_CHECK_OK(check_transfer(node, number));
    for (const ValueRef& output : node.outputs)
      PIPER_CHECK_OK(check_ref(node, output));
    for (const ValueRef& input : node.inputs) {
      PIPER_CHECK_OK(check_ref(node, input));
      const uint32_t from = producer_.find(input);
      if (from == kNone)
        return wrong(node, fmt::format("nothing makes {}, which it reads", graph_.name(input)));
      found_.push_back({from, number, -1});
    }
    for (const TemporalEdge& edge : node.after) {
      const uint32_t from = by_id_.find(edge.before);
      if (from == kNone)
        return wrong(node, fmt::format("it comes after {}, which is not in the graph",
                                       graph_.name(edge.before)));
      PIPER_CHECK_OK(check_directive(node, edge.directive));
      found_.push_back({from, number, edge.directive});
    }
    return {};
  }

  Result<void> check_directive(const Node& node, int32_t directive) const {
    const size_t count = graph_.strategy ? graph_.strategy->directives.size() : 0;
    if (directive < -1 || directive >= static_cast<int64_t>(count))
      return wrong(node, fmt::format("directive {} of {}", directive, count));
    return {};
  }

  Result<void> check_chunks(const Node& node) const {
    if (!is_compute(node.id.op)) {
      if (!node.chunks.empty())
        return wrong(node, "only what runs calls has chunks");
      return {};
    }
    CallId last;
    for (const auto& chunk : node.chunks) {
      if (chunk.empty())
        return wrong(node, "a chunk has no calls");
      for (CallId call : chunk) {
        if (call.value >= graph_.model->calls.size())
          return wrong(node, fmt::format("call {} does not exist", call.value));
        if (last && call <= last)
          return wrong(node, "the calls of its chunks are not in forward order");
        last = call;
      }
    }
    // A backward may begin with a call that has none of its own, in a chunk with one that has.
    const CallId name(node.id.subject);
    if (node.chunks.empty() ||
        (node.id.op == Op::Forward ? node.chunks[0][0] != name
                                   : std::find(node.chunks[0].begin(), node.chunks[0].end(),
                                               name) == node.chunks[0].end()))
      return wrong(node, "its first chunk does not start with the call that names it");
    if (node.id.op != Op::Forward)
      for (const auto& chunk : node.chunks) {
        const uint32_t found = forward_.find(chunk_id(node, chunk));
        if (found == kNone)
          return wrong(node, "there is no forward of its microbatch");
        if (*chunks_[found] != chunk)
          return wrong(node, "its chunks differ from those of the forward of its microbatch");
      }
    return {};
  }

  static NodeId counterpart(NodeId id) {
    const bool mirror = id.op == Op::SendMirror || id.op == Op::RecvMirror;
    if (id.op == Op::Send || id.op == Op::SendMirror)
      id.op = mirror ? Op::RecvMirror : Op::Recv;
    else
      id.op = mirror ? Op::SendMirror : Op::Send;
    std::swap(id.at, id.peer);
    return id;
  }

  Result<void> check_transfer(const Node& node, uint32_t number) {
    const bool send = node.id.op == Op::Send || node.id.op == Op::SendMirror;
    if (node.id.op == Op::Redistribute)
      return check_redistribute(node);
    if (!send && node.id.op != Op::Recv && node.id.op != Op::RecvMirror) {
      if (node.id.peer)
        return wrong(node, "only transfers have a peer");
      return {};
    }
    if (!node.id.at || !node.id.peer || node.id.at == node.id.peer)
      return wrong(node, "a transfer goes between two groups");
    const size_t here = graph_.groups[node.id.at.value].devices.size();
    const size_t there = graph_.groups[node.id.peer.value].devices.size();
    if (here != there)
      return wrong(node, fmt::format("a transfer goes between equal ranks, but the groups have {} "
                                     "and {} devices",
                                     here, there));
    const uint32_t other = by_id_.find(counterpart(node.id));
    if (other == kNone)
      return wrong(node,
                   send ? "nothing receives what it sends" : "nothing sends what it receives");
    if (!send)
      found_.push_back({other, number, -1});
    return {};
  }

  Result<void> check_redistribute(const Node& node) const {
    if (!node.id.at || !node.id.peer)
      return wrong(node, "it moves a value between two groups");
    const Group &from = graph_.groups[node.id.peer.value], &to = graph_.groups[node.id.at.value];
    if (!move_between(from, to))
      return wrong(node, fmt::format("a value cannot go from g{} to g{} within blocks",
                                     node.id.peer.value, node.id.at.value));
    return {};
  }

  /// Sorts the edges by the node that they leave.
  void connect() {
    first_.assign(nodes_.size() + 1, 0);
    for (const FoundEdge& edge : found_)
      ++first_[edge.from + 1];
    for (size_t i = 1; i < first_.size(); ++i)
      first_[i] += first_[i - 1];
    edges_.resize(found_.size());
    std::vector<size_t> next(first_.begin(), first_.end() - 1);
    for (const FoundEdge& edge : found_)
      edges_[next[edge.from]++] = {edge.to, edge.directive};
  }

  Result<void> acyclic() const {
    std::vector<uint32_t> waiting(nodes_.size());
    for (const Edge& edge : edges_)
      ++waiting[edge.to];
    std::vector<uint32_t> ready;
    for (uint32_t i = 0; i < nodes_.size(); ++i)
      if (waiting[i] == 0)
        ready.push_back(i);
    size_t done = 0;
    for (; done < ready.size(); ++done)
      for (size_t e = first_[ready[done]]; e < first_[ready[done] + 1]; ++e)
        if (--waiting[edges_[e].to] == 0)
          ready.push_back(edges_[e].to);
    if (done == nodes_.size())
      return {};
    return describe(shortest_cycle(waiting));
  }

  /// The shortest cycle through one of the nodes that wait for ever: all of them where they are
  /// few, some of them in a large graph.
  std::vector<uint32_t> shortest_cycle(const std::vector<uint32_t>& waiting) const {
    constexpr size_t kVisits = 4'000'000; // bounds the search in a large graph
    std::vector<uint32_t> best;
    std::vector<uint32_t> seen_in(nodes_.size(), kNone), parent(nodes_.size());
    size_t visits = 0;
    for (uint32_t start = 0; start < nodes_.size(); ++start) {
      if (waiting[start] == 0)
        continue;
      if (!best.empty() && visits > kVisits)
        break;
      std::vector<uint32_t> queue = {start};
      bool closed = false;
      for (size_t head = 0; head < queue.size() && !closed; ++head) {
        const uint32_t from = queue[head];
        for (size_t e = first_[from]; e < first_[from + 1] && !closed; ++e) {
          const uint32_t to = edges_[e].to;
          ++visits;
          if (to == start) {
            std::vector<uint32_t> cycle = {from};
            while (cycle.back() != start)
              cycle.push_back(parent[cycle.back()]);
            std::reverse(cycle.begin(), cycle.end());
            if (best.empty() || cycle.size() < best.size())
              best = std::move(cycle);
            closed = true;
          } else if (waiting[to] != 0 && seen_in[to] != start) {
            seen_in[to] = start;
            parent[to] = from;
            queue.push_back(to);
          }
        }
      }
      if (best.size() == 1)
        break;
    }
    return best;
  }

  Error describe(const std::vector<uint32_t>& cycle) const {
    std::string path = graph_.name(nodes_[cycle.front()]->id);
    std::set<int32_t> directives;
    for (size_t i = 0; i < cycle.size(); ++i) {
      const uint32_t from = cycle[i], to = cycle[(i + 1) % cycle.size()];
      // Where a value flows too, no directive is to blame for this step.
      std::optional<int32_t> blame;
      for (size_t e = first_[from]; e < first_[from + 1]; ++e)
        if (edges_[e].to == to)
          blame = blame ? std::min(*blame, edges_[e].directive) : edges_[e].directive;
      path += *blame >= 0 ? fmt::format(" -> (directive {}) ", *blame) : " -> ";
      path += graph_.name(nodes_[to]->id);
      if (*blame >= 0)
        directives.insert(*blame);
    }
    if (directives.empty())
      return wrong(fmt::format("the graph has a cycle: {}", path));
    std::string where;
    for (int32_t directive : directives)
      where += (where.empty() ? "" : "; ") + graph_.strategy->describe(directive);
    return user_error(
        fmt::format("the order asked for is a cycle: {}", path), where,
        directives.size() == 1
            ? fmt::format("directive {} asks for an order that the flow of values forbids",
                          *directives.begin())
            : fmt::format("directives {} ask for opposite orders: change one of them",
                          fmt::join(directives, " and ")));
  }

  const Graph& graph_;
  std::vector<const Node*> nodes_;
  FlatIndex<NodeId> by_id_;
  FlatIndex<ValueRef> producer_;
  FlatIndex<NodeId> forward_; // by the id that a chunk would have alone
  std::vector<const std::vector<CallId>*> chunks_;
  struct FoundEdge {
    uint32_t from, to;
    int32_t directive; // -1: a value or the compiler's own
  };
  std::vector<FoundEdge> found_;
  struct Edge {
    uint32_t to;
    int32_t directive;
  };
  std::vector<size_t> first_; // of each node's edges
  std::vector<Edge> edges_;
};

} // namespace

Result<void> verify(const Graph& graph) {
  return GraphVerifier(graph).run();
}

} // namespace piper::ir
