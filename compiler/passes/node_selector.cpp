#include "compiler/passes/node_selector.h"

#include <fmt/format.h>

#include <numeric>

namespace piper::compiler {

using namespace ir;

NodeSelector::NodeSelector(const Graph& graph)
    : graph_(graph), index_(graph), group_of_call_(graph.model->calls.size()) {
  for (const Node* node : index_.nodes())
    if (node->id.op == Op::Forward)
      group_of_call_[node->id.subject] = node->id.at;
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
        if (const Node* node =
                index_.node({.op = op, .subject = call.value, .microbatch = m, .at = group(call)}))
          nodes.push_back(node);
  if (nodes.empty())
    return user_error(fmt::format("the filter {} matches nothing", filter.to_json()),
                      graph_.strategy->describe(directive),
                      "the calls that it names have no such pass");
  return nodes;
}

} // namespace piper::compiler
