#include "compiler/passes/recompute.h"

#include <algorithm>
#include <set>
#include <unordered_map>

namespace piper::compiler {

using namespace ir;

namespace {

using Chunk = std::vector<CallId>;

template <class T> void add_once(std::vector<T>& list, const T& item) {
  if (std::find(list.begin(), list.end(), item) == list.end())
    list.push_back(item);
}

class Recomputer {
public:
  Recomputer(const Graph& graph, std::vector<bool> chosen)
      : graph_(graph), model_(*graph.model), index_(graph), chosen_(std::move(chosen)) {}

  Graph run() {
    for (const Node* node : index_.nodes())
      if (goes_backward(node->id.op))
        add_for(*node);
    return map_regions(graph_, [&](const Region& region) {
      std::vector<Node> nodes;
      for (const Node& each : region.nodes()) {
        if (auto again = again_.find(&each); again != again_.end())
          nodes.push_back(again->second);
        Node node = each;
        if (auto change = forward_.find(&each); change != forward_.end()) {
          std::erase_if(node.outputs,
                        [&](const ValueRef& ref) { return change->second.dropped.contains(ref); });
          for (const ValueRef& ref : change->second.handed_out)
            add_once(node.outputs, ref);
        }
        nodes.push_back(std::move(node));
      }
      return nodes;
    });
  }

private:
  /// What becomes of a Forward: what it no longer keeps, and what it now gives to a Recompute.
  struct Change {
    std::set<ValueRef> dropped;
    std::vector<ValueRef> handed_out;
  };

  bool is_chosen(const Chunk& chunk) const {
    return std::all_of(chunk.begin(), chunk.end(),
                       [&](CallId call) { return chosen_[call.value]; });
  }

  ValueRef saved(const Node& backward, const Chunk& chunk) const {
    return {.kind = ValueKind::Saved,
            .subject = chunk.front().value,
            .microbatch = backward.microbatch(),
            .at = backward.id.at};
  }

  /// The Recompute of those of the backward's chunks that are not kept.
  void add_for(const Node& backward) {
    Node again;
    std::set<ValueId> made;
    for (const Chunk& chunk : backward.chunks) {
      const Node* forward = is_chosen(chunk) ? index_.producer(saved(backward, chunk)) : nullptr;
      if (!forward)
        continue;
      if (again.chunks.empty()) {
        again.id = backward.id;
        again.id.op = Op::Recompute;
        again.id.subject = chunk.front().value;
        again.stream = backward.stream;
        again.directive = backward.directive;
      }
      again.chunks.push_back(chunk);
      again.outputs.push_back(saved(backward, chunk));
      forward_[forward].dropped.insert(again.outputs.back());
      add_once(again.after, TemporalEdge{.before = forward->id});
      for (CallId call : chunk) {
        for (ValueId value : model_.call(call).inputs)
          if (!made.contains(value))
            read(value, *forward, again);
        made.insert(model_.call(call).outputs.begin(), model_.call(call).outputs.end());
      }
    }
    if (again.chunks.empty())
      return;
    // Not before its backward could run: nothing is gained by holding its result.
    for (const TemporalEdge& edge : backward.after)
      add_once(again.after, edge);
    for (const ValueRef& ref : backward.inputs)
      if (const Node* producer = index_.producer(ref);
          producer && ref.kind != ValueKind::Saved && producer->id.op != Op::Seed)
        add_once(again.after, TemporalEdge{.before = producer->id});
    again_.emplace(&backward, std::move(again));
  }

  /// From where the forward had it, or from the forward itself if it was made inside.
  void read(ValueId value, const Node& forward, Node& again) {
    ValueRef ref{.kind = ValueKind::Activation,
                 .subject = value.value,
                 .microbatch = forward.microbatch(),
                 .at = forward.id.at};
    const auto known =
        std::find_if(forward.inputs.begin(), forward.inputs.end(), [&](const ValueRef& input) {
          return input.kind == ValueKind::Activation && input.subject == value.value;
        });
    if (known != forward.inputs.end())
      ref = *known;
    else
      forward_[&forward].handed_out.push_back(ref);
    add_once(again.inputs, ref);
  }

  const Graph& graph_;
  const ModelSpec& model_;
  const GraphIndex index_;
  const std::vector<bool> chosen_; ///< of each call
  std::unordered_map<const Node*, Change> forward_;
  std::unordered_map<const Node*, Node> again_; ///< by the backward that it comes before
};

} // namespace

Result<Graph> recompute(const CompileOptions& options, const Graph& graph) {
  const Strategy& strategy = *graph.strategy;
  std::vector<bool> chosen(graph.model->calls.size());
  bool any = false;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* directive = std::get_if<Recompute>(&strategy.directives[d].body);
    if (!directive)
      continue;
    for (const std::string& tag : {std::string("PASS"), graph.microbatch_tag})
      if (!tag.empty() && find_term(directive->filter, tag))
        return user_error("the filter " + directive->filter.to_json() +
                              " asks for a part of a call",
                          strategy.describe(d),
                          "leave out " + tag +
                              ": a call is recomputed for "
                              "all its microbatches");
    PIPER_TRY(const std::vector<CallId> calls, select_calls(graph, d, directive->filter));
    for (CallId call : calls)
      chosen[call.value] = any = true;
  }
  if (!any || options.kind == PlanKind::Eval)
    return graph;
  return Recomputer(graph, std::move(chosen)).run();
}

} // namespace piper::compiler
