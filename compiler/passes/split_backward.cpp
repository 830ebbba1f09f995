#include "compiler/passes/split_backward.h"

#include "compiler/passes/node_selector.h"

#include <unordered_set>

namespace piper::compiler {

using namespace ir;

namespace {

/// A call without parameters has nothing to do later.
void cut(const Node& backward, std::vector<Node>& nodes) {
  Node inputs = backward, weights = backward;
  inputs.id.op = Op::BackwardInput;
  weights.id.op = Op::BackwardWeight;
  weights.outputs.clear();
  std::erase_if(inputs.outputs, [&](const ValueRef& ref) {
    if (ref.kind != ValueKind::WeightGrad)
      return false;
    weights.outputs.push_back(ref);
    return true;
  });
  const bool has_weights = !weights.outputs.empty();
  const ValueRef deferred{.kind = ValueKind::Deferred,
                          .subject = backward.id.subject,
                          .microbatch = backward.microbatch(),
                          .at = backward.id.at};
  if (has_weights)
    inputs.outputs.insert(inputs.outputs.begin(), deferred);
  nodes.push_back(std::move(inputs));
  if (!has_weights)
    return;
  weights.inputs = {deferred};
  nodes.push_back(std::move(weights));
}

} // namespace

Result<Graph> split_backward(const CompileOptions& options, const Graph& graph) {
  if (options.kind == PlanKind::Eval)
    return graph;
  NodeSelector selector(graph);
  std::unordered_set<const Node*> chosen;
  const Strategy& strategy = *graph.strategy;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* split = std::get_if<SplitBackward>(&strategy.directives[d].body);
    if (!split)
      continue;
    if (find_term(split->filter, "PASS"))
      return user_error("the filter " + split->filter.to_json() + " names a pass",
                        strategy.describe(d), "leave out PASS: it is a backward that is split");
    PIPER_TRY(std::vector<const Node*> nodes, selector.select(d, split->filter));
    for (const Node* node : nodes)
      if (node->id.op == Op::Backward)
        chosen.insert(node);
  }
  if (chosen.empty())
    return graph;
  return map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes;
    nodes.reserve(region.nodes().size());
    for (const Node& node : region.nodes())
      if (chosen.contains(&node))
        cut(node, nodes);
      else
        nodes.push_back(node);
    return nodes;
  });
}

} // namespace piper::compiler
