#include "compiler/passes/split_batch.h"

#include <fmt/format.h>

namespace piper::compiler {

using namespace ir;

namespace {

struct Cut {
  int64_t count = 1;
  std::string tag;
};

Result<Cut> find_split(const Graph& graph) {
  Cut cut;
  const Strategy& strategy = *graph.strategy;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* split = std::get_if<Split>(&strategy.directives[d].body);
    if (!split)
      continue;
    if (!cut.tag.empty())
      return user_error("the batch is split twice", strategy.describe(d),
                        "keep one split: it cuts the whole model's batch");
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, split->filter));
    if (calls.size() != graph.model->calls.size())
      return user_error(fmt::format("the filter {} matches {} of {} calls", split->filter.to_json(),
                                    calls.size(), graph.model->calls.size()),
                        strategy.describe(d), "a split cuts the whole model: use the filter {}");
    if (split->count < 1)
      return user_error(fmt::format("cannot cut a batch into {} microbatches", split->count),
                        strategy.describe(d), "num_microbatches must be at least 1");
    if (split->dim.empty() || split->dim == "PASS" || split->dim == "call")
      return user_error(fmt::format("'{}' cannot name the microbatches", split->dim),
                        strategy.describe(d), "use \"MB\"");
    if (graph.model->batch % split->count != 0)
      return user_error(fmt::format("the batch of {} rows is not divisible into {} microbatches",
                                    graph.model->batch, split->count),
                        strategy.describe(d),
                        fmt::format("choose a divisor of {}", graph.model->batch));
    cut = {split->count, split->dim};
  }
  return cut;
}

} // namespace

Result<Graph> split_batch(const CompileOptions&, const Graph& graph) {
  PIPER_TRY(Cut cut, find_split(graph));
  Graph result = map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes;
    nodes.reserve(region.nodes().size() * cut.count);
    for (int32_t m = 0; m < cut.count; ++m)
      for (Node node : region.nodes()) {
        node.id.microbatch = m;
        for (ValueRef& ref : node.inputs)
          ref.microbatch = m;
        for (ValueRef& ref : node.outputs)
          ref.microbatch = m;
        if (node.id.op == Op::Seed)
          node.scale /= static_cast<double>(cut.count);
        nodes.push_back(std::move(node));
      }
    return nodes;
  });
  result.microbatches = cut.count;
  result.microbatch_tag = cut.tag;
  return result;
}

} // namespace piper::compiler
