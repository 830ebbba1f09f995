#include "compiler/passes/lower_model.h"

#include <algorithm>

namespace piper::compiler {

using namespace ir;

namespace {

Result<void> apply_tags(Graph& graph) {
  for (size_t d = 0; d < graph.strategy->directives.size(); ++d) {
    const auto* tag = std::get_if<TagCalls>(&graph.strategy->directives[d].body);
    if (!tag)
      continue;
    if (tag->name == "PASS" || tag->name == "MB" || tag->name == "call")
      return user_error("'" + tag->name + "' is a tag that every node has already",
                        graph.strategy->describe(d), "choose another name");
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, tag->filter));
    for (CallId call : calls)
      graph.tags[call.value].push_back({tag->name, tag->index});
  }
  return {};
}

} // namespace

Result<Graph> lower_model(const CompileOptions&, const Graph& empty) {
  Graph graph = empty;
  const ModelSpec& model = *graph.model;
  graph.tags.clear();
  for (const ModelCall& call : model.calls)
    graph.tags.push_back(call.annotations);
  PIPER_CHECK_OK(apply_tags(graph));

  std::vector<Node> inputs;
  for (ValueId input : model.inputs) {
    Node node;
    node.id = {.op = Op::Input, .subject = input.value};
    node.outputs = {{.kind = ValueKind::Activation, .subject = input.value}};
    inputs.push_back(std::move(node));
  }
  graph.regions.push_back(std::make_shared<Region>("input", std::move(inputs)));

  const std::vector<uint32_t> segments = model.segments();
  const std::vector<std::string> names = segment_names(model);
  std::vector<std::vector<Node>> forward(names.size());
  for (size_t c = 0; c < model.calls.size(); ++c) {
    Node node;
    node.id = {.op = Op::Forward, .subject = static_cast<uint32_t>(c)};
    node.chunks = {{CallId(c)}};
    for (ValueId v : model.calls[c].inputs) {
      ValueRef ref{.kind = ValueKind::Activation, .subject = v.value};
      if (std::find(node.inputs.begin(), node.inputs.end(), ref) == node.inputs.end())
        node.inputs.push_back(ref);
    }
    for (ValueId v : model.calls[c].outputs)
      node.outputs.push_back({.kind = ValueKind::Activation, .subject = v.value});
    forward[segments[c]].push_back(std::move(node));
  }
  for (size_t s = 0; s < names.size(); ++s)
    graph.regions.push_back(std::make_shared<Region>("F " + names[s], std::move(forward[s])));

  Node loss;
  loss.id = {.op = Op::Loss, .subject = model.loss.value};
  loss.inputs = {{.kind = ValueKind::Activation, .subject = model.loss.value}};
  graph.regions.push_back(std::make_shared<Region>("loss", std::vector<Node>{std::move(loss)}));
  return graph;
}

} // namespace piper::compiler
