#include "compiler/passes/add_backward.h"

#include <algorithm>

namespace piper::compiler {

using namespace ir;

namespace {

/// Which values get a gradient and which calls hand it on.
struct Reach {
  std::vector<bool> value;                  ///< has a gradient
  std::vector<bool> call;                   ///< has a Backward
  std::vector<std::vector<CallId>> readers; ///< of each value: calls with a Backward, in order
};

Reach find_reach(const ModelSpec& model) {
  Reach reach{std::vector<bool>(model.values.size()), std::vector<bool>(model.calls.size()),
              std::vector<std::vector<CallId>>(model.values.size())};
  reach.value[model.loss.value] = true;
  for (size_t c = model.calls.size(); c-- > 0;) {
    const ModelCall& call = model.calls[c];
    const bool reached = std::any_of(call.outputs.begin(), call.outputs.end(), [&](ValueId v) {
      return reach.value[v.value] && model.value(v).differentiable;
    });
    const bool useful = !call.params.empty() ||
                        std::any_of(call.inputs.begin(), call.inputs.end(),
                                    [&](ValueId v) { return model.value(v).differentiable; });
    if (!reached || !useful)
      continue;
    reach.call[c] = true;
    for (ValueId v : call.inputs) {
      if (!model.value(v).differentiable)
        continue;
      reach.value[v.value] = true;
      auto& readers = reach.readers[v.value];
      if (readers.empty() || readers.front() != CallId(c))
        readers.insert(readers.begin(), CallId(c));
    }
  }
  return reach;
}

Node backward_of(const ModelSpec& model, const Reach& reach, uint32_t c) {
  const ModelCall& call = model.calls[c];
  Node node;
  node.id = {.op = Op::Backward, .subject = c};
  node.chunks = {{CallId(c)}};
  node.inputs.push_back({.kind = ValueKind::Saved, .subject = c});
  for (ValueId v : call.outputs)
    if (reach.value[v.value])
      node.inputs.push_back({.kind = ValueKind::Gradient, .subject = v.value});
  for (ValueId v : call.inputs) {
    if (!model.value(v).differentiable)
      continue;
    ValueRef ref{.kind = ValueKind::Gradient, .subject = v.value};
    if (reach.readers[v.value].size() > 1)
      ref = {.kind = ValueKind::GradientPart, .subject = v.value, .part = c};
    if (std::find(node.outputs.begin(), node.outputs.end(), ref) == node.outputs.end())
      node.outputs.push_back(ref);
  }
  if (!call.params.empty())
    node.outputs.push_back({.kind = ValueKind::WeightGrad, .subject = c});
  return node;
}

Node add_of(const Reach& reach, ValueId v) {
  Node node;
  node.id = {.op = Op::Add, .subject = v.value};
  const auto& readers = reach.readers[v.value];
  for (auto reader = readers.rbegin(); reader != readers.rend(); ++reader)
    node.inputs.push_back(
        {.kind = ValueKind::GradientPart, .subject = v.value, .part = reader->value});
  node.outputs = {{.kind = ValueKind::Gradient, .subject = v.value}};
  return node;
}

} // namespace

Result<Graph> add_backward(const CompileOptions& options, const Graph& graph) {
  if (options.kind == PlanKind::Eval)
    return graph;
  const ModelSpec& model = *graph.model;
  if (!model.value(model.loss).differentiable)
    return user_error("the loss of model '" + model.name + "' does not depend on any parameter",
                      "model " + model.name, "train a model that has parameters");
  const Reach reach = find_reach(model);

  Graph result = map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    for (Node& node : nodes)
      if (node.id.op == Op::Forward && reach.call[node.id.subject])
        node.outputs.insert(node.outputs.begin(),
                            {.kind = ValueKind::Saved, .subject = node.id.subject});
    if (region.name() == "loss") {
      Node seed;
      seed.id = {.op = Op::Seed, .subject = model.loss.value};
      seed.outputs = {{.kind = ValueKind::Gradient, .subject = model.loss.value}};
      nodes.push_back(std::move(seed));
    }
    return nodes;
  });

  // The backward region of a segment: what its forward region has, backwards.
  const std::vector<uint32_t> segments = model.segments();
  const std::vector<std::string> names = segment_names(model);
  std::vector<std::vector<Node>> backward(names.size());
  for (size_t c = model.calls.size(); c-- > 0;) {
    auto& nodes = backward[segments[c]];
    for (ValueId v : model.calls[c].outputs)
      if (reach.readers[v.value].size() > 1)
        nodes.push_back(add_of(reach, v));
    if (reach.call[c])
      nodes.push_back(backward_of(model, reach, static_cast<uint32_t>(c)));
  }
  for (size_t s = names.size(); s-- > 0;)
    if (!backward[s].empty())
      result.regions.push_back(std::make_shared<Region>("B " + names[s], std::move(backward[s])));
  return result;
}

} // namespace piper::compiler
