#include "compiler/passes/node_selector.h"

#include <fmt/format.h>

#include <numeric>

namespace piper::compiler {

using namespace ir;

NodeSelector::NodeSelector(const Graph& graph)
    : graph_(graph), calls_in_model_(graph.model->calls.size()),
      forward_(graph.microbatches * calls_in_model_), backward_(forward_.size()),
      group_of_call_(calls_in_model_) {
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes()) {
      const size_t at = node.microbatch() * calls_in_model_ + node.id.subject;
      if (node.id.op == Op::Forward) {
        forward_[at] = &node;
        group_of_call_[node.id.subject] = node.id.at;
      } else if (node.id.op == Op::Backward) {
        backward_[at] = &node;
      }
    }
}

Result<std::vector<const Node*>> NodeSelector::select(size_t directive, const Filter& filter) {
  // Terms on pass and microbatch pick ids; those on calls are looked up once for all microbatches.
  Filter on_calls, on_nodes;
  for (const auto& term : filter.terms) {
    const bool is_node = term.first == "PASS" || term.first == graph_.microbatch_tag;
    (is_node ? on_nodes : on_calls).terms.push_back(term);
  }
  auto [entry, unknown] = calls_.try_emplace(on_calls.to_json());
  if (unknown) {
    PIPER_TRY(entry->second, select_calls(graph_, directive, on_calls));
  }
  PIPER_CHECK_OK(check_filter(graph_, directive, on_nodes));

  std::vector<Op> ops = {Op::Forward, Op::Backward};
  if (const TagMatch* pass = find_term(filter, "PASS"); pass && !pass->indices.empty()) {
    ops.clear();
    for (const TagIndex& name : pass->indices) {
      if (name == TagIndex(std::string("F")))
        ops.push_back(Op::Forward);
      if (name == TagIndex(std::string("B")))
        ops.push_back(Op::Backward);
    }
  }
  std::vector<int32_t> microbatches;
  const TagMatch* which = find_term(filter, graph_.microbatch_tag);
  if (which && !which->indices.empty()) {
    for (const TagIndex& m : which->indices)
      if (const auto* number = std::get_if<int64_t>(&m))
        microbatches.push_back(static_cast<int32_t>(*number));
  } else {
    microbatches.resize(graph_.microbatches);
    std::iota(microbatches.begin(), microbatches.end(), 0);
  }

  std::vector<const Node*> nodes;
  for (int32_t m : microbatches)
    for (Op op : ops)
      for (CallId call : entry->second)
        if (const Node* found = node(op, m, call))
          nodes.push_back(found);
  if (nodes.empty())
    return user_error(fmt::format("the filter {} matches nothing", filter.to_json()),
                      graph_.strategy->describe(directive),
                      "the calls that it names have no such pass");
  return nodes;
}

} // namespace piper::compiler
