#include "compiler/linearize.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>

namespace piper::compiler {

using namespace ir;

namespace {

/// Of what could start at one time, the smallest goes first.
struct Priority {
  int rank = 0;
  int32_t microbatch = 0;
  NodeId id;
  uint32_t node = 0;
  auto operator<=>(const Priority&) const = default;
};

/// Depends on nothing: made when it is first read, so that it does not lie around.
bool is_source(const Node& node) {
  return node.id.op == Op::Input || node.id.op == Op::Seed;
}

int rank_of(Op op) {
  switch (op) {
  case Op::BackwardWeight:
    return 3; // nothing waits for it but the end
  case Op::Forward:
    return 2;
  case Op::Recompute:
  case Op::Backward:
  case Op::BackwardInput:
    return 1; // frees activations
  default:
    return 0; // costs nothing and lets others start
  }
}

struct Waiting {
  double ready = 0;
  Priority priority;
  bool operator>(const Waiting& other) const {
    return std::tie(ready, priority) > std::tie(other.ready, other.priority);
  }
};

template <class T> using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<T>>;

/// A stream of a group, in simulated time.
struct Lane {
  double clock = 0;
  MinHeap<Waiting> later;      ///< ready after `clock`
  MinHeap<Priority> available; ///< ready by `clock`
  /// Of its entry in the heap of starts that counts; nan if none does.
  double posted = std::numeric_limits<double>::quiet_NaN();
  bool empty() const { return later.empty() && available.empty(); }
  double next_start() const { return available.empty() ? later.top().ready : clock; }
};

class Scheduler {
public:
  Scheduler(const Graph& graph, const GraphIndex& index) : graph_(graph), nodes_(index.nodes()) {
    const size_t n = nodes_.size();
    std::unordered_map<const Node*, uint32_t> number;
    number.reserve(n);
    for (size_t i = 0; i < n; ++i)
      number[nodes_[i]] = static_cast<uint32_t>(i);
    waits_for_.resize(n);
    ready_.resize(n);
    sources_.resize(n);
    std::vector<std::pair<uint32_t, uint32_t>> edges;
    edges.reserve(3 * n);
    std::map<std::pair<GroupId, std::string>, uint32_t> lanes;
    lane_of_.resize(n);
    for (uint32_t i = 0; i < n; ++i) {
      const Node& node = *nodes_[i];
      auto [lane, added] = lanes.try_emplace({node.id.at, node.stream}, lanes.size());
      lane_of_[i] = lane->second;
      auto depend = [&](const Node* before) {
        if (!before)
          return;
        const uint32_t b = number.at(before);
        if (is_source(*before))
          sources_[i].push_back(b);
        else
          edges.emplace_back(b, i);
      };
      for (const ValueRef& ref : node.inputs)
        depend(index.producer(ref));
      for (const TemporalEdge& edge : node.after)
        depend(index.node(edge.before));
    }
    lanes_.resize(lanes.size());
    first_.assign(n + 1, 0);
    for (const auto& [from, to] : edges) {
      ++first_[from + 1];
      ++waits_for_[to];
    }
    for (size_t i = 0; i < n; ++i)
      first_[i + 1] += first_[i];
    next_.resize(edges.size());
    std::vector<uint32_t> fill(first_.begin(), first_.end() - 1);
    for (const auto& [from, to] : edges)
      next_[fill[from]++] = to;
  }

  std::vector<const Node*> run() {
    order_.reserve(nodes_.size());
    emitted_.resize(nodes_.size());
    for (uint32_t i = 0; i < nodes_.size(); ++i)
      if (waits_for_[i] == 0 && !is_source(*nodes_[i]))
        enqueue(i);
    while (!starts_.empty()) {
      const auto [start, l] = starts_.top();
      starts_.pop();
      Lane& lane = lanes_[l];
      if (start != lane.posted) // overtaken by a change of the lane
        continue;
      lane.posted = std::numeric_limits<double>::quiet_NaN();
      lane.clock = std::max(lane.clock, start);
      while (!lane.later.empty() && lane.later.top().ready <= lane.clock) {
        lane.available.push(lane.later.top().priority);
        lane.later.pop();
      }
      const uint32_t node = lane.available.top().node;
      lane.available.pop();
      lane.clock += cost(*nodes_[node]);
      execute(node, lane.clock);
      if (!lane.empty())
        post(l);
    }
    return std::move(order_);
  }

private:
  double cost(const Node& node) const {
    if (!is_compute(node.id.op))
      return 0;
    double flops = 0;
    for (const auto& chunk : node.chunks)
      for (CallId call : chunk)
        flops += std::max(graph_.model->call(call).flops_per_row, 1.0);
    // A backward computes the gradients of inputs and of weights: twice the forward's work.
    return flops * (node.id.op == Op::Backward ? 2 : 1);
  }

  void enqueue(uint32_t i) {
    Lane& lane = lanes_[lane_of_[i]];
    const Node& node = *nodes_[i];
    Priority priority{rank_of(node.id.op), node.microbatch(), node.id, i};
    if (ready_[i] <= lane.clock)
      lane.available.push(priority);
    else
      lane.later.push({ready_[i], priority});
    post(lane_of_[i]);
  }

  /// One entry a lane counts, so that a lane with much to do is not looked at for all of it.
  void post(uint32_t l) {
    Lane& lane = lanes_[l];
    if (const double next = lane.next_start(); next != lane.posted) {
      lane.posted = next;
      starts_.emplace(next, l);
    }
  }

  void emit(uint32_t i) {
    emitted_[i] = true;
    order_.push_back(nodes_[i]);
  }

  void execute(uint32_t i, double end) {
    for (uint32_t source : sources_[i])
      if (!emitted_[source])
        emit(source);
    emit(i);
    for (uint32_t e = first_[i]; e < first_[i + 1]; ++e) {
      const uint32_t after = next_[e];
      ready_[after] = std::max(ready_[after], end);
      if (--waits_for_[after] > 0)
        continue;
      if (nodes_[after]->id.op == Op::Recv || nodes_[after]->id.op == Op::RecvMirror)
        execute(after, ready_[after]);
      else
        enqueue(after);
    }
  }

  const Graph& graph_;
  const std::vector<const Node*>& nodes_;
  std::vector<uint32_t> waits_for_;            ///< how many others come first
  std::vector<double> ready_;                  ///< when the last of them ends
  std::vector<std::vector<uint32_t>> sources_; ///< Input and Seed nodes that this one reads
  std::vector<uint32_t> first_, next_; ///< successors of i: next_[first_[i] … first_[i+1])
  std::vector<uint32_t> lane_of_;
  std::vector<Lane> lanes_;
  MinHeap<std::pair<double, uint32_t>> starts_; ///< (start, lane), possibly out of date
  std::vector<const Node*> order_;
  std::vector<bool> emitted_;
};

} // namespace

std::vector<const Node*> linearize(const Graph& graph, const GraphIndex& index) {
  return Scheduler(graph, index).run();
}

} // namespace piper::compiler
