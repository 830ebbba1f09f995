#include "compiler/passes/offload.h"

#include "compiler/linearize.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace piper::compiler {

using namespace ir;

namespace {

/// How many uses ahead values are fetched where `prefetch` says nothing.
constexpr int64_t kDefaultPrefetch = 1;
/// Passes of a device whose values may be on their way out at one time; one fewer while others are
/// on their way in.
constexpr size_t kOutgoing = 2;

/// What the directives say of each call.
struct Wishes {
  std::vector<bool> offload;
  std::vector<int64_t> distance;
};

class Offloader {
public:
  Offloader(const Graph& graph, Wishes wishes)
      : graph_(graph), index_(graph), wishes_(std::move(wishes)) {
    for (const Node* node : linearize(graph, index_))
      if (is_compute(node->id.op))
        order_[graph.groups[node->id.at.value].devices].push_back(node);
  }

  Graph run() {
    for (const auto& [devices, nodes] : order_)
      move(nodes);
    Graph result = map_regions(graph_, [&](const Region& region) {
      std::vector<Node> nodes;
      for (const Node& each : region.nodes()) {
        Node node = each;
        if (const auto changed = inputs_.find(&each); changed != inputs_.end())
          for (ValueRef& ref : node.inputs)
            if (changed->second.contains(ref))
              ref.part = kFetched;
        if (const auto after = after_.find(&each); after != after_.end())
          node.after.insert(node.after.end(), after->second.begin(), after->second.end());
        if (const auto before = fetches_.find(&each); before != fetches_.end())
          nodes.push_back(before->second);
        nodes.push_back(std::move(node));
        if (const auto behind = offloads_.find(&each); behind != offloads_.end())
          nodes.insert(nodes.end(), behind->second.begin(), behind->second.end());
      }
      return nodes;
    });
    return result;
  }

private:
  /// Compute of a device, as it will be issued.
  struct Sequence {
    const std::vector<const Node*>& nodes;
    std::unordered_map<const Node*, size_t> place;
    std::map<ValueRef, size_t> last_read; ///< by a forward
  };

  /// What the node reads and an offload would take away meanwhile.
  std::vector<ValueRef> wanted(const Node& node, const Sequence& sequence) const {
    std::vector<ValueRef> refs;
    if (!is_compute(node.id.op) || node.id.op == Op::Forward)
      return refs;
    std::set<uint32_t> chosen; // chunks, by their first call
    for (const auto& chunk : node.chunks)
      if (std::all_of(chunk.begin(), chunk.end(),
                      [&](CallId call) { return wishes_.offload[call.value]; }))
        chosen.insert(chunk.front().value);
    for (const ValueRef& ref : node.inputs)
      if (node.id.op == Op::Recompute
              ? ref.kind == ValueKind::Activation && chosen.size() == node.chunks.size()
              : is_kept(ref.kind) && chosen.contains(ref.subject))
        if (is_put_off(node, ref, sequence))
          refs.push_back(ref);
    return refs;
  }

  /// The pass after which the value is not needed for a while.
  size_t last_use(const ValueRef& ref, const Sequence& sequence) const {
    return is_kept(ref.kind) ? sequence.place.at(index_.producer(ref)) : sequence.last_read.at(ref);
  }

  /// Whether the value would come back before it is needed again: some pass runs in between, and
  /// between two backwards one that is not of the same microbatch's.
  bool is_put_off(const Node& node, const ValueRef& ref, const Sequence& sequence) const {
    const Node* producer = index_.producer(ref);
    if (is_kept(ref.kind) && (!producer || producer->id.op == Op::Recompute))
      return false;
    const size_t last = last_use(ref, sequence);
    const auto first = sequence.nodes.begin() + static_cast<ptrdiff_t>(last) + 1;
    const auto end = sequence.nodes.begin() + static_cast<ptrdiff_t>(sequence.place.at(&node));
    return std::any_of(first, end, [&](const Node* between) {
      return ref.kind != ValueKind::Deferred || between->id.op == Op::Forward ||
             between->microbatch() != node.microbatch();
    });
  }

  void move(const std::vector<const Node*>& nodes) {
    Sequence sequence{nodes, {}, {}};
    for (size_t i = 0; i < nodes.size(); ++i) {
      sequence.place[nodes[i]] = i;
      if (nodes[i]->id.op == Op::Forward)
        for (const ValueRef& ref : nodes[i]->inputs)
          sequence.last_read[ref] = i;
    }
    std::vector<size_t> uses;                       // places of the nodes that fetch
    std::map<size_t, std::vector<NodeId>> outgoing; // by the pass that they follow
    std::map<size_t, size_t> starts;                // of fetches, by their use
    std::set<ValueRef> moved;
    for (size_t i = 0; i < nodes.size(); ++i) {
      std::vector<ValueRef> refs = wanted(*nodes[i], sequence);
      if (refs.empty())
        continue;
      inputs_[nodes[i]].insert(refs.begin(), refs.end());
      std::erase_if(refs, [&](const ValueRef& ref) { return !moved.insert(ref).second; });
      if (refs.empty())
        continue; // an earlier one fetches them
      std::map<size_t, std::vector<ValueRef>> by_pass;
      for (const ValueRef& ref : refs)
        by_pass[last_use(ref, sequence)].push_back(ref);
      for (const auto& [f, values] : by_pass) {
        offloads_[nodes[f]].push_back(make(Op::Offload, values, CallId::kNone, kInPool));
        outgoing[f].push_back(offloads_[nodes[f]].back().id);
      }
      Node fetch = make(Op::Fetch, refs, kInPool, kFetched);
      const int64_t ahead = wishes_.distance[nodes[i]->chunks.front().front().value];
      const size_t w = uses.size();
      uses.push_back(i);
      // It may run once that use begins which is so many before; the first ones, once the node
      // before their use does.
      size_t start = i > 0 ? i - 1 : 0;
      if (ahead == 0)
        start = i;
      else if (static_cast<int64_t>(w) >= ahead)
        start = std::min(start, uses[w - static_cast<size_t>(ahead)]);
      if (start > 0)
        fetch.after.push_back({.before = nodes[start - 1]->id});
      fetches_.emplace(nodes[i], std::move(fetch));
      starts[i] = start;
    }
    hold_up(nodes, outgoing, starts);
  }

  /// A slow way out holds up the passes and the way in, not the memory. `starts`: of the fetch for
  /// a node, the node with which it may run.
  void hold_up(const std::vector<const Node*>& nodes,
               const std::map<size_t, std::vector<NodeId>>& outgoing,
               const std::map<size_t, size_t>& starts) {
    std::vector<std::pair<size_t, const std::vector<NodeId>*>> list;
    for (const auto& [pass, ids] : outgoing)
      list.emplace_back(pass, &ids);
    for (size_t w = kOutgoing; w < list.size(); ++w)
      for (const NodeId& id : *list[w - kOutgoing].second)
        after_[nodes[list[w].first]].push_back({.before = id});
    for (const auto& [use, start] : starts) {
      const auto later = std::partition_point(list.begin(), list.end(),
                                              [&](const auto& each) { return each.first < start; });
      if (later - list.begin() >= static_cast<ptrdiff_t>(kOutgoing))
        for (const NodeId& id : *(later - kOutgoing)->second)
          fetches_.at(nodes[use]).after.push_back({.before = id});
    }
  }

  static Node make(Op op, const std::vector<ValueRef>& refs, uint32_t from, uint32_t to) {
    Node node;
    const ValueRef& first = refs.front();
    node.id = {.op = op,
               .kind = first.kind,
               .subject = first.subject,
               .microbatch = first.microbatch,
               .at = first.at};
    for (ValueRef ref : refs) {
      ref.part = from;
      node.inputs.push_back(ref);
      ref.part = to;
      node.outputs.push_back(ref);
    }
    return node;
  }

  const Graph& graph_;
  const GraphIndex index_;
  const Wishes wishes_;
  /// Compute, as it will be issued on these devices.
  std::map<std::vector<DeviceIndex>, std::vector<const Node*>> order_;
  std::unordered_map<const Node*, std::set<ValueRef>> inputs_;  ///< that have been away
  std::unordered_map<const Node*, Node> fetches_;               ///< by the node that they are for
  std::unordered_map<const Node*, std::vector<Node>> offloads_; ///< by the pass they follow
  std::unordered_map<const Node*, std::vector<TemporalEdge>> after_;
};

} // namespace

Result<Graph> offload(const CompileOptions& options, const Graph& graph) {
  const Strategy& strategy = *graph.strategy;
  const size_t calls = graph.model->calls.size();
  Wishes wishes{std::vector<bool>(calls), std::vector<int64_t>(calls, kDefaultPrefetch)};
  bool any = false;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* offload = std::get_if<Offload>(&strategy.directives[d].body);
    const auto* prefetch = std::get_if<Prefetch>(&strategy.directives[d].body);
    if (prefetch) {
      PIPER_TRY(const std::vector<CallId> chosen, select_calls(graph, d, prefetch->filter));
      for (CallId call : chosen)
        wishes.distance[call.value] = prefetch->distance;
    }
    if (!offload || !offload->activations)
      continue;
    PIPER_TRY(const std::vector<CallId> chosen, select_calls(graph, d, offload->filter));
    for (CallId call : chosen)
      wishes.offload[call.value] = any = true;
  }
  if (!any || options.kind == PlanKind::Eval)
    return graph;
  return Offloader(graph, std::move(wishes)).run();
}

} // namespace piper::compiler
