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

class Inserter {
public:
  explicit Inserter(const Graph& graph) : graph_(graph), counts_(graph.model->values.size()) {
    for (const ModelCall& call : graph.model->calls)
      if (call.counts)
        for (const auto* list : {&call.inputs, &call.outputs})
          for (ValueId value : *list)
            counts_[value.value] = call.counts;
    for (const RegionPtr& region : graph.regions)
      for (const Node& node : region->nodes()) {
        if (is_compute(node.id.op))
          reads_.try_emplace(node.id.at);
        for (const ValueRef& ref : node.outputs)
          if (ref.kind == ValueKind::Activation && graph.model->values[ref.subject].is_counts)
            counts_at_[{ref.subject, ref.microbatch}] = ref.at;
      }
    for (auto& [self, at] : reads_)
      at = with_layout(graph_, self, reads(graph_.groups[self.value].layout));
  }

  Graph run() {
    const Graph before = graph_;
    std::vector<RegionPtr> regions =
        map_regions(before, [&](const Region& region) {
          std::vector<Node> nodes = region.nodes();
          for (Node& node : nodes) {
            const GroupId wanted = is_compute(node.id.op) ? reads_.at(node.id.at) : node.id.at;
            for (ValueRef& ref : node.inputs)
              if (is_tensor(ref.kind))
                ref = bring(ref, wanted);
          }
          return nodes;
        }).regions;
    graph_.regions = std::move(regions);
    for (const auto& [ends, values] : moves_) {
      const auto [from, to] = ends;
      const bool within = devices(from) == devices(to);
      std::vector<Node> nodes;
      for (const ValueRef& value : values)
        if (within)
          nodes.push_back(redistribute(value, from, to));
        else
          transfer(value, from, to, nodes);
      graph_.regions.push_back(std::make_shared<Region>(
          fmt::format("{} g{}>g{}", within ? "redistribute" : "transfer", from.value, to.value),
          std::move(nodes)));
    }
    return std::move(graph_);
  }

private:
  const Group& group(GroupId id) const { return graph_.groups[id.value]; }
  const std::vector<DeviceIndex>& devices(GroupId id) const { return group(id).devices; }
  GroupId whole(GroupId id) { return intern_group(graph_, group(id).whole()); }

  /// The value at `to`, moved there step by step: to a layout in which it can travel, to the other
  /// devices, and to the layout that is wanted.
  ValueRef bring(const ValueRef& value, GroupId to) {
    if (value.at == to)
      return value;
    if (devices(value.at) != devices(to)) {
      // What is in pieces at either end travels so: each rank sends the less.
      const bool in_pieces =
          group(to).layout == Layout::Tokens || group(value.at).layout == Layout::Tokens;
      const Layout layout = in_pieces ? Layout::Tokens : Layout::Whole;
      const GroupId here = with_layout(graph_, whole(value.at), layout);
      const GroupId there = with_layout(graph_, whole(to), layout);
      return bring(move(bring(value, here), there), to);
    }
    if (!move_between(group(value.at), group(to)))
      return bring(move(value, whole(value.at)), to);
    if (const ValueId counts = counts_of(value, to)) {
      const auto made = counts_at_.find({counts.value, value.microbatch});
      if (made != counts_at_.end())
        for (GroupId at : {value.at, to})
          bring({.kind = ValueKind::Activation,
                 .subject = counts.value,
                 .microbatch = value.microbatch,
                 .at = made->second},
                at);
    }
    return move(value, to);
  }

  ValueRef move(ValueRef value, GroupId to) {
    if (value.at != to)
      moves_[{value.at, to}].insert(value);
    value.at = to;
    return value;
  }

  /// What an all-to-all of the value also reads; none where it moves the counts themselves.
  ValueId counts_of(const ValueRef& value, GroupId to) const {
    return move_between(group(value.at), group(to)) == Move::AllToAll &&
                   !graph_.model->values[value.subject].is_counts
               ? counts_[value.subject]
               : ValueId();
  }

  static NodeId id_of(Op op, const ValueRef& value, GroupId at, GroupId peer) {
    return {.op = op,
            .kind = value.kind,
            .subject = value.subject,
            .part = value.part,
            .microbatch = value.microbatch,
            .at = at,
            .peer = peer};
  }

  Node redistribute(const ValueRef& value, GroupId from, GroupId to) const {
    Node node;
    node.id = id_of(Op::Redistribute, value, to, from);
    node.inputs = {value};
    node.outputs = {value};
    node.outputs.front().at = to;
    if (const ValueId counts = counts_of(value, to))
      for (GroupId at : {from, to})
        node.inputs.push_back({.kind = ValueKind::Activation,
                               .subject = counts.value,
                               .microbatch = value.microbatch,
                               .at = at});
    return node;
  }

  static void transfer(const ValueRef& value, GroupId from, GroupId to, std::vector<Node>& nodes) {
    Node send;
    send.id = id_of(Op::Send, value, from, to);
    send.inputs = {value};
    Node recv;
    recv.id = id_of(Op::Recv, value, to, from);
    recv.outputs = {value};
    recv.outputs.front().at = to;
    recv.after = {{.before = send.id}};
    nodes.push_back(std::move(send));
    nodes.push_back(std::move(recv));
  }

  Graph graph_;
  std::vector<ValueId> counts_;      ///< of each value that experts read or make
  std::map<GroupId, GroupId> reads_; ///< of each group that runs calls, where these read
  std::map<std::pair<uint32_t, int32_t>, GroupId> counts_at_; ///< where counts are made
  /// (from, to) -> what goes.
  std::map<std::pair<GroupId, GroupId>, std::set<ValueRef, TransferOrder>> moves_;
};

} // namespace

Result<Graph> insert_communication(const CompileOptions&, const Graph& graph) {
  return Inserter(graph).run();
}

} // namespace piper::compiler
