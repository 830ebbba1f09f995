#include "compiler/passes/overlap.h"

#include "compiler/passes/node_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

namespace piper::compiler {

using namespace ir;

namespace {

/// Two backwards that add to one gradient at a time would add in an order that nothing fixes.
Result<void> check_race(const Graph& graph, size_t directive, const std::vector<const Node*>& a,
                        const std::vector<const Node*>& b) {
  std::set<ParamId> adds;
  for (const Node* node : a)
    if (adds_to_gradients(node->id.op))
      for (ParamId param : graph.model->calls[node->id.subject].params)
        adds.insert(param);
  for (const Node* node : b) {
    if (!adds_to_gradients(node->id.op))
      continue;
    for (ParamId param : graph.model->calls[node->id.subject].params)
      if (adds.contains(param))
        return user_error(fmt::format("both sides would add to the gradient of {} at the same time",
                                      graph.model->param(param).name),
                          graph.strategy->describe(directive),
                          "let one side be forwards, or calls with other parameters");
  }
  return {};
}

} // namespace

Result<Graph> overlap(const CompileOptions& options, const Graph& graph) {
  if (options.kind == PlanKind::Eval)
    return graph;
  const Strategy& strategy = *graph.strategy;
  if (std::none_of(strategy.directives.begin(), strategy.directives.end(),
                   [](const Directive& d) { return std::holds_alternative<Overlap>(d.body); }))
    return graph;
  NodeSelector selector(graph);
  std::unordered_map<const Node*, std::string> stream;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* directive = std::get_if<Overlap>(&strategy.directives[d].body);
    if (!directive)
      continue;
    PIPER_TRY(std::vector<const Node*> a, selector.select(d, directive->a));
    PIPER_TRY(std::vector<const Node*> b, selector.select(d, directive->b));
    for (const Node* node : b)
      if (std::find(a.begin(), a.end(), node) != a.end())
        return user_error(fmt::format("{} is on both sides", graph.name(node->id)),
                          strategy.describe(d), "make the filters disjoint");
    PIPER_CHECK_OK(check_race(graph, d, a, b));
    for (const Node* node : a)
      stream[node] = "compute";
    for (const Node* node : b)
      stream[node] = "compute.b";
  }
  return map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    for (size_t i = 0; i < nodes.size(); ++i)
      if (auto found = stream.find(&region.nodes()[i]); found != stream.end())
        nodes[i].stream = found->second;
    return nodes;
  });
}

} // namespace piper::compiler
