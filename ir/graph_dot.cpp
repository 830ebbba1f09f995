// Graphviz: a cluster a region, solid edges for values, dashed ones for orders.
#include "ir/graph.h"

#include "ir/hash.h"

#include <fmt/format.h>

#include <iterator>

namespace piper::ir {

namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\')
      out += '\\';
    out += c;
  }
  return out;
}

const char* color_of(Op op) {
  switch (op) {
  case Op::Forward:
  case Op::Recompute:
    return "lightskyblue";
  case Op::Backward:
  case Op::BackwardInput:
  case Op::BackwardWeight:
    return "lightsalmon";
  case Op::Send:
  case Op::Recv:
  case Op::Offload:
  case Op::Fetch:
  case Op::SendMirror:
  case Op::RecvMirror:
    return "palegreen";
  case Op::AllReduce:
  case Op::ReduceScatter:
  case Op::AllGather:
  case Op::Gather:
  case Op::Redistribute:
    return "gold";
  default:
    return "white";
  }
}

} // namespace

std::string Graph::to_dot() const {
  std::unordered_map<NodeId, size_t, IdHash> number;
  std::unordered_map<ValueRef, size_t, IdHash> producer;
  for (const RegionPtr& region : regions)
    for (const Node& node : region->nodes()) {
      const size_t index = number.size();
      number.emplace(node.id, index);
      for (const ValueRef& output : node.outputs)
        producer.emplace(output, index);
    }

  std::string out = "digraph piper {\n  rankdir=LR;\n  node [shape=box, style=filled];\n";
  auto print = [sink = std::back_inserter(out)]<class... Args>(fmt::format_string<Args...> format,
                                                               Args&&... args) {
    fmt::format_to(sink, format, std::forward<Args>(args)...);
  };
  for (size_t r = 0; r < regions.size(); ++r) {
    print("  subgraph cluster_{} {{\n    label=\"{}\";\n", r, escaped(regions[r]->name()));
    for (const Node& node : regions[r]->nodes())
      print("    n{} [label=\"{}\", fillcolor={}];\n", number.at(node.id), escaped(name(node.id)),
            color_of(node.id.op));
    print("  }}\n");
  }
  for (const RegionPtr& region : regions)
    for (const Node& node : region->nodes()) {
      const size_t to = number.at(node.id);
      for (const ValueRef& input : node.inputs)
        if (auto from = producer.find(input); from != producer.end())
          print("  n{} -> n{} [label=\"{}\"];\n", from->second, to, escaped(name(input)));
      for (const TemporalEdge& edge : node.after) {
        auto from = number.find(edge.before);
        if (from == number.end())
          continue;
        print("  n{} -> n{} [style=dashed", from->second, to);
        if (edge.directive >= 0)
          print(", label=\"directive {}\"", edge.directive);
        print("];\n");
      }
    }
  return out + "}\n";
}

} // namespace piper::ir
