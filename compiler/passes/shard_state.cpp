#include "compiler/passes/shard_state.h"

#include "compiler/linearize.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace piper::compiler {

using namespace ir;

namespace {

/// How many windows ahead of its use a bucket is gathered where `prefetch` says nothing.
constexpr int64_t kDefaultPrefetch = 1;
/// Buckets of a group whose whole gradients may be there at one time.
constexpr size_t kWholeGradients = 2;

/// A run of nodes on the same devices, first and last by their place in the order there.
struct Window {
  uint32_t bucket = 0;
  uint32_t number = 0; ///< among the bucket's windows of this kind
  size_t first = 0, last = 0;
};

class Sharder {
public:
  explicit Sharder(const Graph& graph) : graph_(graph), index_(graph) {
    bucket_of_.resize(graph.model->params.size());
    for (size_t b = 0; b < graph.buckets.size(); ++b)
      for (ParamId param : graph.buckets[b].params)
        bucket_of_[param.value] = static_cast<uint32_t>(b);
    for (const Node* node : linearize(graph, index_))
      if (is_compute(node->id.op))
        order_[graph.groups[node->id.at.value].devices].push_back(node);
    added_.resize(graph.buckets.size());
    reduced_.resize(graph.buckets.size());
    once_.resize(graph.buckets.size());
    for (const Node* node : index_.nodes())
      if (replaced(*node))
        once_[node->id.subject] = node->outputs.front();
  }

  Result<Graph> run() {
    PIPER_TRY(distance_, distances());
    for (const auto& [devices, nodes] : order_) {
      gather(nodes);
      reduce(nodes);
    }
    return rewrite();
  }

private:
  /// A reduction an iteration, in place of which come those of the windows.
  bool replaced(const Node& node) const {
    return node.id.op == Op::ReduceScatter && graph_.buckets[node.id.subject].shard_grads;
  }

  /// Of each bucket, by `prefetch`.
  Result<std::vector<int64_t>> distances() const {
    std::vector<int64_t> distance(graph_.buckets.size(), kDefaultPrefetch);
    const Strategy& strategy = *graph_.strategy;
    for (size_t d = 0; d < strategy.directives.size(); ++d) {
      const auto* prefetch = std::get_if<Prefetch>(&strategy.directives[d].body);
      if (!prefetch)
        continue;
      PIPER_TRY(const std::vector<CallId> calls, select_calls(graph_, d, prefetch->filter));
      for (CallId call : calls)
        for (ParamId param : graph_.model->call(call).params)
          distance[bucket_of_[param.value]] = prefetch->distance;
    }
    return distance;
  }

  template <class Wanted>
  std::vector<Window> windows(const std::vector<const Node*>& nodes, Wanted wanted) const {
    std::vector<Window> found;
    std::map<uint32_t, size_t> open;       // bucket -> its latest window
    std::map<uint32_t, uint32_t> numbered; // bucket -> how many windows
    for (size_t i = 0; i < nodes.size(); ++i)
      for (const auto& chunk : nodes[i]->chunks)
        for (CallId call : chunk)
          for (ParamId param : graph_.model->call(call).params) {
            const uint32_t bucket = bucket_of_[param.value];
            if (!wanted(*nodes[i], graph_.buckets[bucket], param))
              continue;
            auto [latest, first] = open.try_emplace(bucket, found.size());
            if (!first && found[latest->second].last + 1 >= i) {
              found[latest->second].last = i;
              continue;
            }
            latest->second = found.size();
            found.push_back({bucket, numbered[bucket]++, i, i});
          }
    return found;
  }

  void gather(const std::vector<const Node*>& nodes) {
    const std::vector<Window> all = windows(
        nodes, [](const Node&, const Bucket& bucket, ParamId) { return bucket.shard_params; });
    std::vector<std::vector<const Window*>> ending(nodes.size() +
                                                   1); // by the node after their last
    for (const Window& window : all)
      ending[window.last + 1].push_back(&window);
    for (size_t w = 0; w < all.size(); ++w) {
      const Window& window = all[w];
      const GroupId at = graph_.buckets[window.bucket].group;
      const ValueRef gathered{
          .kind = ValueKind::Gathered, .subject = window.bucket, .part = window.number, .at = at};
      Node gather;
      gather.id = {.op = Op::Gather, .subject = window.bucket, .part = window.number, .at = at};
      gather.outputs = {gathered};
      if (w > 0) // in the order of their use
        gather.after.push_back({.before = {.op = Op::Gather,
                                           .subject = all[w - 1].bucket,
                                           .part = all[w - 1].number,
                                           .at = graph_.buckets[all[w - 1].bucket].group}});
      if (window.number > 0)
        gather.after.push_back({.before = release_id(window, window.number - 1)});
      const int64_t ahead = distance_[window.bucket];
      if (static_cast<int64_t>(w) >= ahead)
        wait_for_start(gather, nodes, ending, all[w - static_cast<size_t>(ahead)].first);
      Node release;
      release.id = release_id(window, window.number);
      release.inputs = {gathered};
      for (size_t i = window.first; i <= window.last; ++i) {
        more_inputs_[nodes[i]].push_back(gathered);
        release.after.push_back({.before = nodes[i]->id});
      }
      added_[window.bucket].push_back(std::move(gather));
      added_[window.bucket].push_back(std::move(release));
    }
  }

  /// The node may run once the one at `start` could: after what comes before that, and after what
  /// that lets go.
  void wait_for_start(Node& node, const std::vector<const Node*>& nodes,
                      const std::vector<std::vector<const Window*>>& ending, size_t start) const {
    if (start == 0)
      return;
    node.after.push_back({.before = nodes[start - 1]->id});
    for (const Window* other : ending[start])
      if (!(other->bucket == node.id.subject && other->number >= node.id.part))
        node.after.push_back({.before = release_id(*other, other->number)});
  }

  NodeId release_id(const Window& window, uint32_t number) const {
    return {.op = Op::Release,
            .subject = window.bucket,
            .part = number,
            .at = graph_.buckets[window.bucket].group};
  }

  void reduce(const std::vector<const Node*>& nodes) {
    const auto adds = [&](const Node& node, const Bucket& bucket, ParamId param) {
      // BackwardInput does the gradients of parameters of one dimension: see adds_to_gradients.
      return bucket.shard_grads && adds_to_gradients(node.id.op) &&
             (node.id.op != Op::BackwardInput || graph_.model->param(param).type.dims.size() <= 1);
    };
    const std::vector<Window> all = windows(nodes, adds);
    for (size_t w = 0; w < all.size(); ++w) {
      const Window& window = all[w];
      const GroupId at = graph_.buckets[window.bucket].group;
      const ValueRef zeroed{
          .kind = ValueKind::Zeroed, .subject = window.bucket, .part = window.number, .at = at};
      Node zero, scatter;
      zero.id = {.op = Op::ZeroGrads, .subject = window.bucket, .part = window.number, .at = at};
      zero.outputs = {zeroed};
      scatter.id = scatter_id(window.bucket, window.number, at);
      scatter.inputs = {zeroed};
      scatter.outputs = {once_[window.bucket]};
      scatter.outputs.front().part = window.number;
      if (window.number > 0)
        zero.after.push_back({.before = scatter_id(window.bucket, window.number - 1, at)});
      if (w >= kWholeGradients) { // a slow reduction holds up the backward, not the memory
        const Window& done = all[w - kWholeGradients];
        if (done.bucket != window.bucket && done.last < window.first)
          zero.after.push_back(
              {.before = scatter_id(done.bucket, done.number, graph_.buckets[done.bucket].group)});
      }
      if (window.first > 0)
        zero.after.push_back({.before = nodes[window.first - 1]->id});
      for (size_t i = window.first; i <= window.last; ++i) {
        more_inputs_[nodes[i]].push_back(zeroed);
        scatter.after.push_back({.before = nodes[i]->id});
        for (const ValueRef& ref : nodes[i]->outputs)
          if (ref.kind == ValueKind::WeightGrad && feeds(CallId(ref.subject), window.bucket))
            scatter.inputs.push_back(ref);
      }
      reduced_[window.bucket].push_back(scatter.outputs.front());
      added_[window.bucket].push_back(std::move(zero));
      added_[window.bucket].push_back(std::move(scatter));
    }
  }

  static NodeId scatter_id(uint32_t bucket, uint32_t number, GroupId at) {
    return {.op = Op::ReduceScatter, .subject = bucket, .part = number, .at = at};
  }

  bool feeds(CallId call, uint32_t bucket) const {
    const auto& params = graph_.model->call(call).params;
    return std::any_of(params.begin(), params.end(),
                       [&](ParamId param) { return bucket_of_[param.value] == bucket; });
  }

  Graph rewrite() const {
    std::vector<bool> placed(graph_.buckets.size());
    Graph result = map_regions(graph_, [&](const Region& region) {
      std::vector<Node> nodes;
      uint32_t bucket = UINT32_MAX;
      for (const Node& each : region.nodes()) {
        Node node = each;
        if (auto more = more_inputs_.find(&each); more != more_inputs_.end())
          node.inputs.insert(node.inputs.end(), more->second.begin(), more->second.end());
        if (is_bucket_op(node.id.op))
          bucket = node.id.subject;
        expect_windows(node);
        if (node.id.op == Op::Update && graph_.buckets[bucket].shard_params &&
            !added_[bucket].empty())
          node.after.push_back({.before = last_release(bucket)});
        if (!replaced(node))
          nodes.push_back(std::move(node));
      }
      if (bucket != UINT32_MAX) {
        nodes.insert(nodes.begin(), added_[bucket].begin(), added_[bucket].end());
        placed[bucket] = true;
      }
      return nodes;
    });
    for (size_t b = 0; b < added_.size(); ++b) // of an evaluation, which has no other bucket nodes
      if (!placed[b] && !added_[b].empty())
        result.regions.push_back(
            std::make_shared<Region>("bucket " + graph_.buckets[b].name, added_[b]));
    return result;
  }

  NodeId last_release(uint32_t bucket) const {
    const auto last = std::find_if(added_[bucket].rbegin(), added_[bucket].rend(),
                                   [](const Node& node) { return node.id.op == Op::Release; });
    return last->id;
  }

  /// In place of one reduction a bucket, those of its windows.
  void expect_windows(Node& reader) const {
    std::vector<ValueRef> inputs;
    for (const ValueRef& ref : reader.inputs)
      if (ref.subject < once_.size() && ref == once_[ref.subject])
        inputs.insert(inputs.end(), reduced_[ref.subject].begin(), reduced_[ref.subject].end());
      else
        inputs.push_back(ref);
    reader.inputs = std::move(inputs);
  }

  const Graph& graph_;
  const GraphIndex index_;
  std::vector<uint32_t> bucket_of_; ///< of each parameter
  /// Compute, as it will be issued on these devices.
  std::map<std::vector<DeviceIndex>, std::vector<const Node*>> order_;
  std::vector<int64_t> distance_;              ///< of each bucket
  std::vector<std::vector<Node>> added_;       ///< of each bucket
  std::vector<std::vector<ValueRef>> reduced_; ///< of each bucket, by window
  std::vector<ValueRef> once_; ///< of each bucket, what its replaced reduction makes
  std::unordered_map<const Node*, std::vector<ValueRef>> more_inputs_; ///< of compute
};

} // namespace

Result<Graph> shard_state(const CompileOptions&, const Graph& graph) {
  if (std::none_of(graph.buckets.begin(), graph.buckets.end(),
                   [](const Bucket& bucket) { return bucket.shard_grads || bucket.shard_params; }))
    return graph;
  return Sharder(graph).run();
}

} // namespace piper::compiler
