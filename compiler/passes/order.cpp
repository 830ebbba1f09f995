#include "compiler/passes/order.h"

#include "compiler/passes/node_selector.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace piper::compiler {

using namespace ir;

namespace {

using NodeList = std::vector<const Node*>;

/// Those of `set` that feed no other of it (or, with `first`, that read from no other): an edge to
/// or from them orders the rest as well. A few too many do no harm.
NodeList ends_of(const NodeList& set, bool first) {
  if (set.size() == 1)
    return set;
  std::set<ValueRef> inner;
  for (const Node* node : set)
    for (const ValueRef& ref : first ? node->outputs : node->inputs)
      inner.insert(ref);
  NodeList ends;
  for (const Node* node : set) {
    const auto& refs = first ? node->inputs : node->outputs;
    if (std::none_of(refs.begin(), refs.end(),
                     [&](const ValueRef& ref) { return inner.contains(ref); }))
      ends.push_back(node);
  }
  return ends;
}

} // namespace

Result<Graph> order(const CompileOptions& options, const Graph& graph) {
  if (options.kind == PlanKind::Eval)
    return graph; // nothing there competes with the forward
  const Strategy& strategy = *graph.strategy;
  if (std::none_of(strategy.directives.begin(), strategy.directives.end(),
                   [](const Directive& d) { return std::holds_alternative<Order>(d.body); }))
    return graph;
  NodeSelector selector(graph);
  std::unordered_map<const Node*, std::vector<TemporalEdge>> added;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* directive = std::get_if<Order>(&strategy.directives[d].body);
    if (!directive)
      continue;
    std::map<GroupId, NodeList> last; // of each placement, the latest step with nodes there
    for (const auto& step : directive->groups) {
      std::map<GroupId, NodeList> here;
      std::unordered_set<const Node*> seen;
      for (const Filter& filter : step) {
        PIPER_TRY(NodeList nodes, selector.select(d, filter));
        for (const Node* node : nodes)
          if (seen.insert(node).second)
            here[node->id.at].push_back(node);
      }
      for (auto& [group, nodes] : here) {
        auto [previous, none] = last.try_emplace(group);
        if (!none)
          for (const Node* after : ends_of(nodes, true))
            for (const Node* before : previous->second)
              added[after].push_back({.before = before->id, .directive = static_cast<int32_t>(d)});
        previous->second = ends_of(nodes, false);
      }
    }
  }
  return map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    for (size_t i = 0; i < nodes.size(); ++i)
      if (auto edges = added.find(&region.nodes()[i]); edges != added.end())
        nodes[i].after.insert(nodes[i].after.end(), edges->second.begin(), edges->second.end());
    return nodes;
  });
}

} // namespace piper::compiler
