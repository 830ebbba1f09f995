#include "compiler/passes/assign_streams.h"

#include <fmt/format.h>

#include <string_view>

namespace piper::compiler {

using namespace ir;

namespace {

/// The stream that `place` names for the calls it matches, and those of `replicate`.
struct Streams {
  std::vector<std::string> compute, reduce, gather; ///< by call; empty: the default
};

/// What `overlap` has put beside the first compute stream: ".b".
std::string_view side_of(const GraphIndex& index, const Node& node) {
  constexpr std::string_view kFirst = "compute";
  const Node* producer = node.inputs.empty() ? nullptr : index.producer(node.inputs.front());
  while (producer && producer->id.op == Op::Redistribute && !producer->inputs.empty())
    producer = index.producer(producer->inputs.front());
  const std::string_view stream = producer ? std::string_view(producer->stream) : "";
  return stream.starts_with(kFirst) ? stream.substr(kFirst.size()) : std::string_view();
}

/// The streams that `shard` and `shard_tensor` name for moves between layouts on their devices.
/// Each side of an overlap has one of its own, or what one waits for would keep the other's from
/// leaving.
std::string move_stream(const Graph& graph, const GraphIndex& index, const Node& node) {
  const Group &from = graph.groups[node.id.peer.value], &to = graph.groups[node.id.at.value];
  const Move move = *move_between(from, to);
  if (move == Move::Slice)
    return {}; // local: goes with its reader
  for (const Directive& directive : graph.strategy->directives) {
    const auto* experts = std::get_if<Shard>(&directive.body);
    const auto* tensors = std::get_if<ShardTensor>(&directive.body);
    if (move == Move::AllToAll && experts && experts->devices == to.devices &&
        !experts->stream.empty())
      return experts->stream;
    if (move != Move::AllToAll && tensors && tensors->devices == to.devices &&
        !tensors->stream.empty())
      return tensors->stream;
  }
  return fmt::format("{}{}", move == Move::AllToAll ? "all-to-all" : "redistribute",
                     side_of(index, node));
}

Result<Streams> read_directives(const Graph& graph) {
  const size_t calls = graph.model->calls.size();
  Streams streams{std::vector<std::string>(calls), std::vector<std::string>(calls),
                  std::vector<std::string>(calls)};
  for (size_t d = 0; d < graph.strategy->directives.size(); ++d) {
    const DirectiveBody& body = graph.strategy->directives[d].body;
    const auto* place = std::get_if<Place>(&body);
    const auto* replicate = std::get_if<Replicate>(&body);
    if (!place && !replicate)
      continue;
    PIPER_TRY(std::vector<CallId> selected,
              select_calls(graph, d, place ? place->filter : replicate->filter));
    for (CallId call : selected) {
      if (place)
        streams.compute[call.value] = place->stream;
      else {
        streams.reduce[call.value] = replicate->reduce_stream;
        streams.gather[call.value] = replicate->gather_stream;
      }
    }
  }
  return streams;
}

} // namespace

Result<Graph> assign_streams(const CompileOptions&, const Graph& graph) {
  PIPER_TRY(Streams streams, read_directives(graph));
  std::vector<CallId> user(graph.model->params.size()); // of each parameter, the first
  for (size_t c = graph.model->calls.size(); c-- > 0;)
    for (ParamId param : graph.model->calls[c].params)
      user[param.value] = CallId(c);
  auto or_else = [](const std::string& name, const char* otherwise) {
    return name.empty() ? std::string(otherwise) : name;
  };
  auto bucket_call = [&](const Node& node) {
    return user[graph.buckets[node.id.subject].params.front().value].value;
  };
  auto follows_reduction = [&](const Node& update) {
    const Bucket& bucket = graph.buckets[update.id.subject];
    return bucket.fused_update && graph.groups[bucket.group.value].copies() > 1;
  };
  auto compute = [&](uint32_t call) { return or_else(streams.compute[call], "compute"); };

  const GraphIndex given(graph);
  Graph placed = map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    for (Node& node : nodes) {
      if (!node.stream.empty())
        continue; // by `overlap`
      switch (node.id.op) {
      case Op::Forward:
      case Op::Recompute:
      case Op::Backward:
      case Op::BackwardInput:
      case Op::BackwardWeight:
        node.stream = compute(node.id.subject);
        break;
      case Op::AllReduce:
      case Op::ReduceScatter:
        node.stream = or_else(streams.reduce[bucket_call(node)], "reduce");
        break;
      case Op::AllGather:
        node.stream = or_else(streams.gather[bucket_call(node)], "reduce");
        break;
      case Op::Gather:
        node.stream = or_else(streams.gather[bucket_call(node)], "gather");
        break;
      case Op::Recv:
        node.stream = "recv";
        break;
      case Op::Offload:
        node.stream = "offload";
        break;
      case Op::Fetch:
        node.stream = "fetch";
        break;
      case Op::SendMirror: // a device may send and receive at once: a stream for each
        node.stream = "mirror";
        break;
      case Op::RecvMirror:
        node.stream = "recv-mirror";
        break;
      case Op::Redistribute:
        node.stream = move_stream(graph, given, node);
        break;
      case Op::Update:
        if (follows_reduction(node)) { // right behind the reduction that it is fused into
          node.stream = or_else(streams.reduce[bucket_call(node)], "reduce");
          break;
        }
        [[fallthrough]];
      case Op::Release:
      case Op::ZeroGrads:
      case Op::UpdateMirror:
      case Op::Commit:
        node.stream = "compute";
        break;
      default:
        break; // goes with its neighbours, below
      }
    }
    return nodes;
  });

  // Input, Add and Seed run where their value is read, Send and Loss where it is made.
  const GraphIndex index(placed);
  std::unordered_map<const Node*, std::string> with_reader;
  for (const Node* node : index.nodes())
    for (const ValueRef& ref : node->inputs)
      if (const Node* producer = index.producer(ref);
          producer && producer->stream.empty() && !node->stream.empty())
        with_reader.try_emplace(producer, node->stream);
  return map_regions(placed, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i].stream.empty())
        continue;
      const Node& original = region.nodes()[i];
      if (auto found = with_reader.find(&original); found != with_reader.end())
        nodes[i].stream = found->second;
      else if (const Node* producer =
                   nodes[i].inputs.empty() ? nullptr : index.producer(nodes[i].inputs.front());
               producer && !producer->stream.empty() && producer->id.op != Op::Recv)
        nodes[i].stream = producer->stream;
      else
        nodes[i].stream = "compute";
    }
    return nodes;
  });
}

} // namespace piper::compiler
