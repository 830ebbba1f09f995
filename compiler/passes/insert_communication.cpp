#include "compiler/passes/insert_communication.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <tuple>

namespace piper::compiler {

using namespace ir;

namespace {

/// Values that live in memory; tokens stand for an order within a device and never travel.
bool is_tensor(ValueKind kind) {
  return kind == ValueKind::Activation || kind == ValueKind::Gradient ||
         kind == ValueKind::GradientPart;
}

/// Microbatch first: the order in which most of them will be ready.
struct TransferOrder {
  bool operator()(const ValueRef& a, const ValueRef& b) const {
    return std::tie(a.microbatch, a) < std::tie(b.microbatch, b);
  }
};

} // namespace

Result<Graph> insert_communication(const CompileOptions&, const Graph& graph) {
  // (from, to) -> what travels.
  std::map<std::pair<GroupId, GroupId>, std::set<ValueRef, TransferOrder>> transfers;
  Graph result = map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    for (Node& node : nodes)
      for (ValueRef& ref : node.inputs)
        if (is_tensor(ref.kind) && ref.at != node.id.at) {
          transfers[{ref.at, node.id.at}].insert(ref);
          ref.at = node.id.at;
        }
    return nodes;
  });
  for (const auto& [ends, values] : transfers) {
    const auto [from, to] = ends;
    std::vector<Node> nodes;
    nodes.reserve(2 * values.size());
    for (const ValueRef& value : values) {
      Node send;
      send.id = {.op = Op::Send,
                 .kind = value.kind,
                 .subject = value.subject,
                 .part = value.part,
                 .microbatch = value.microbatch,
                 .at = from,
                 .peer = to};
      send.inputs = {value};
      Node recv;
      recv.id = send.id;
      recv.id.op = Op::Recv;
      recv.id.at = to;
      recv.id.peer = from;
      recv.outputs = {value};
      recv.outputs.front().at = to;
      recv.after = {{.before = send.id}};
      nodes.push_back(std::move(send));
      nodes.push_back(std::move(recv));
    }
    result.regions.push_back(std::make_shared<Region>(
        fmt::format("transfer g{}>g{}", from.value, to.value), std::move(nodes)));
  }
  return result;
}

} // namespace piper::compiler
