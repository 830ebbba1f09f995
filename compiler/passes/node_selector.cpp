#include "compiler/passes/node_selector.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace piper::compiler {

using namespace ir;

NodeSelector::NodeSelector(const Graph& graph)
    : graph_(graph), calls_in_model_(graph.model->calls.size()) {
  for (auto& nodes : nodes_)
    nodes.resize(graph.microbatches * calls_in_model_);
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes()) {
      if (!is_compute(node.id.op))
        continue;
      nodes_[static_cast<size_t>(pass_of(node.id.op))]
            [node.microbatch() * calls_in_model_ + node.id.subject] = &node;
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

  std::vector<Op> ops = {Op::Forward, Op::Backward, Op::BackwardInput, Op::BackwardWeight};
  const TagMatch* pass = find_term(filter, "PASS");
  if (pass && !pass->indices.empty())
    std::erase_if(ops, [&](Op op) {
      const TagIndex name = std::string(to_string(op));
      return std::find(pass->indices.begin(), pass->indices.end(), name) == pass->indices.end();
    });
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
        if (const Node* found = node(pass_of(op), m, call); found && found->id.op == op)
          nodes.push_back(found);
  if (nodes.empty())
    return user_error(fmt::format("the filter {} matches nothing", filter.to_json()),
                      graph_.strategy->describe(directive),
                      "the calls that it names have no such pass: it is B, or BI and BW where a "
                      "split_backward matches");
  return nodes;
}

} // namespace piper::compiler
