#include "compiler/emit_plans.h"

#include "compiler/linearize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace piper::compiler {

using namespace ir;

namespace {

constexpr uint32_t kNone = UINT32_MAX;

/// A node and its place in the order of the whole graph.
struct Placed {
  uint32_t position;
  const Node* node;
};

Opcode opcode_of(Op op) {
  switch (op) {
  case Op::Input:
    return Opcode::Input;
  case Op::Forward:
    return Opcode::Forward;
  case Op::Recompute:
    return Opcode::Recompute;
  case Op::Seed:
    return Opcode::Seed;
  case Op::Backward:
    return Opcode::Backward;
  case Op::BackwardInput:
    return Opcode::BackwardInput;
  case Op::BackwardWeight:
    return Opcode::BackwardWeight;
  case Op::Add:
    return Opcode::Add;
  case Op::Loss:
    return Opcode::Loss;
  case Op::Send:
    return Opcode::Send;
  case Op::Recv:
    return Opcode::Recv;
  case Op::AllReduce:
    return Opcode::AllReduce;
  case Op::ReduceScatter:
    return Opcode::ReduceScatter;
  case Op::Commit:
    return Opcode::Commit;
  case Op::Update:
    return Opcode::Update;
  case Op::AllGather:
    return Opcode::AllGather;
  case Op::Gather:
    return Opcode::Gather;
  case Op::Release:
    return Opcode::Release;
  case Op::ZeroGrads:
    return Opcode::ZeroGrads;
  case Op::Redistribute:
    return Opcode::Redistribute;
  case Op::Offload:
    return Opcode::Offload;
  case Op::Fetch:
    return Opcode::Fetch;
  case Op::SendMirror:
    return Opcode::SendMirror;
  case Op::RecvMirror:
    return Opcode::RecvMirror;
  case Op::UpdateMirror:
    return Opcode::UpdateMirror;
  }
  return Opcode::Forward;
}

/// Numbers what goes over the transport: one edge for all microbatches of a transfer.
class Edges {
public:
  explicit Edges(const Graph& graph) : graph_(graph) {}

  EdgeId of(const Node& node) {
    const bool transfer = node.id.op == Op::Send || node.id.op == Op::Recv;
    const bool mirror = node.id.op == Op::SendMirror || node.id.op == Op::RecvMirror;
    const bool recv = node.id.op == Op::Recv || node.id.op == Op::RecvMirror;
    const Key key{transfer ? Op::Send
                  : mirror ? Op::SendMirror
                           : node.id.op,
                  node.id.kind,
                  node.id.subject,
                  node.id.part,
                  recv ? node.id.peer : node.id.at,
                  recv ? node.id.at : node.id.peer};
    auto [entry, added] = ids_.try_emplace(key, EdgeId(names.size()));
    if (added) {
      NodeId id = node.id; // of any microbatch
      id.microbatch = kNoMicrobatch;
      names.push_back(transfer ? graph_.name(moved(node)) : graph_.name(id));
    }
    return entry->second;
  }
  std::vector<std::string> names;

private:
  using Key = std::tuple<Op, ValueKind, uint32_t, uint32_t, GroupId, GroupId>;
  static ValueRef moved(const Node& node) {
    return {.kind = node.id.kind,
            .subject = node.id.subject,
            .part = node.id.part,
            .at = node.id.op == Op::Recv ? node.id.at : node.id.peer};
  }
  const Graph& graph_;
  std::map<Key, EdgeId> ids_;
};

/// Builds the plan of one role.
class Emitter {
public:
  Emitter(const Graph& graph, Edges& edges, PlanKind kind, GroupId world,
          const std::vector<bool>& member)
      : graph_(graph), edges_(edges), kind_(kind), world_(world), member_(member) {}

  Plan run(const std::vector<Placed>& nodes, const std::set<std::pair<GroupId, GroupId>>& local) {
    for (const Placed& placed : nodes) {
      const Node& node = *placed.node;
      const bool recv = node.id.op == Op::Recv;
      if ((node.id.op == Op::Send || recv) &&
          local.contains(recv ? std::pair(node.id.peer, node.id.at)
                              : std::pair(node.id.at, node.id.peer))) {
        // Both ends are this device: the value is there already.
        if (recv) {
          ValueRef source = node.outputs.front();
          source.at = node.id.peer;
          slots_[node.outputs.front()] = slots_.at(source);
        }
        continue;
      }
      emit(node);
    }
    order_gradients();
    free_slots();
    place_events();
    return std::move(plan_);
  }

private:
  uint32_t stream(const std::string& name) {
    auto& streams = plan_.streams;
    const auto found = std::find(streams.begin(), streams.end(), name);
    if (found == streams.end())
      streams.push_back(name);
    return static_cast<uint32_t>(std::find(streams.begin(), streams.end(), name) - streams.begin());
  }

  static bool is_token(ValueKind kind) { return kind >= ValueKind::WeightGrad; }

  SlotId new_slot(const ValueRef& ref) {
    Slot slot{.value = ref, .type = {}};
    if (!is_kept(ref.kind))
      slot.type = type_on(graph_.groups[ref.at.value], graph_.model->values[ref.subject]);
    plan_.slots.push_back(std::move(slot));
    return slots_[ref] = SlotId(plan_.slots.size() - 1);
  }

  void emit(const Node& node) {
    const auto self = static_cast<uint32_t>(plan_.instructions.size());
    Instruction instruction;
    instruction.op = opcode_of(node.id.op);
    instruction.stream = stream(node.stream);
    instruction.microbatch = node.microbatch();
    instruction.chunks = node.chunks;
    instruction.self = node.id.at;
    instruction.scale = node.scale;
    instruction.directive = node.directive;
    std::vector<uint32_t>& depends = depends_.emplace_back();

    for (const ValueRef& ref : node.inputs) {
      if (is_token(ref.kind)) {
        // A token of a group that this device is no member of is another device's concern.
        if (auto made = tokens_.find(ref); made != tokens_.end())
          depends.push_back(made->second);
        continue;
      }
      const SlotId slot = slots_.at(ref);
      instruction.inputs.push_back(slot);
      depends.push_back(maker_[slot.value]);
    }
    for (const TemporalEdge& edge : node.after) {
      if (node.id.op == Op::RecvMirror && edge.before.op == Op::SendMirror)
        continue; // its send is another device's, also where this one has both groups
      if (auto before = instruction_of_.find(edge.before); before != instruction_of_.end())
        depends.push_back(before->second);
    }

    const bool keeps = goes_forward(node.id.op);
    if ((keeps && kind_ == PlanKind::Train) || node.id.op == Op::BackwardInput)
      for (const auto& chunk : node.chunks) {
        const ValueRef kept{.kind = keeps ? ValueKind::Saved : ValueKind::Deferred,
                            .subject = chunk.front().value,
                            .microbatch = node.microbatch(),
                            .at = node.id.at};
        const bool is_read =
            std::find(node.outputs.begin(), node.outputs.end(), kept) != node.outputs.end();
        instruction.outputs.push_back(is_read ? new_slot(kept) : SlotId());
      }
    for (const ValueRef& ref : node.outputs) {
      if (is_token(ref.kind))
        tokens_[ref] = self;
      else if (!is_kept(ref.kind) || node.id.op == Op::Offload || node.id.op == Op::Fetch)
        instruction.outputs.push_back(new_slot(ref));
    }
    maker_.resize(plan_.slots.size(), self);

    switch (node.id.op) {
    case Op::Send:
    case Op::Recv:
    case Op::Redistribute:
      instruction.group = node.id.peer;
      instruction.edge = edges_.of(node);
      break;
    case Op::SendMirror:
    case Op::RecvMirror:
      instruction.group = node.id.peer;
      instruction.edge = edges_.of(node);
      instruction.buckets = {BucketId(node.id.subject)};
      break;
    case Op::AllReduce:
    case Op::ReduceScatter:
    case Op::AllGather:
    case Op::Gather:
      instruction.edge = edges_.of(node);
      [[fallthrough]];
    case Op::Update:
    case Op::Release:
    case Op::ZeroGrads:
    case Op::UpdateMirror:
      instruction.group = node.id.at;
      instruction.buckets = {BucketId(node.id.subject)};
      break;
    case Op::Commit:
      instruction.edge = edges_.of(node);
      instruction.group = world_;
      for (size_t b = 0; b < graph_.buckets.size(); ++b)
        if (member_[graph_.buckets[b].group.value] && !graph_.buckets[b].fused_update)
          instruction.buckets.push_back(BucketId(b));
      break;
    default:
      break;
    }
    instruction_of_[node.id] = self;
    plan_.instructions.push_back(std::move(instruction));
  }

  /// Two backwards that add to one parameter's gradient do so in issue order, also across streams.
  void order_gradients() {
    std::map<ParamId, uint32_t> last;
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      const Instruction& instruction = plan_.instructions[i];
      if (!adds_to_gradients(instruction.op))
        continue;
      for (const auto& chunk : instruction.chunks)
        for (CallId call : chunk)
          for (ParamId param : graph_.model->call(call).params) {
            auto [entry, first] = last.try_emplace(param, i);
            if (!first && plan_.instructions[entry->second].stream != instruction.stream)
              depends_[i].push_back(entry->second);
            entry->second = i;
          }
    }
  }

  /// A slot is dropped by its last reader, which waits for the readers on other streams.
  void free_slots() {
    std::vector<std::vector<uint32_t>> readers(plan_.slots.size()); // the last of each stream
    auto note = [&](SlotId slot, uint32_t i) {
      if (!slot)
        return;
      auto& list = readers[slot.value];
      std::erase_if(list, [&](uint32_t other) {
        return plan_.instructions[other].stream == plan_.instructions[i].stream;
      });
      list.push_back(i);
    };
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      for (SlotId slot : plan_.instructions[i].outputs)
        note(slot, i);
      for (SlotId slot : plan_.instructions[i].inputs)
        note(slot, i);
    }
    for (size_t s = 0; s < readers.size(); ++s) {
      if (readers[s].empty())
        continue;
      const uint32_t last = *std::max_element(readers[s].begin(), readers[s].end());
      plan_.instructions[last].frees.push_back(SlotId(s));
      for (uint32_t reader : readers[s])
        if (reader != last)
          depends_[last].push_back(reader);
    }
  }

  /// Waits for what other streams do, as few as say it all.
  void place_events() {
    const size_t streams = plan_.streams.size();
    // reached[a][b]: the last instruction of stream b that stream a is known to come after.
    std::vector<std::vector<uint32_t>> reached(streams, std::vector<uint32_t>(streams, kNone));
    auto before = [](uint32_t a, uint32_t b) { return a == kNone || (b != kNone && a < b); };
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      Instruction& instruction = plan_.instructions[i];
      std::map<uint32_t, uint32_t> latest; // by stream
      for (uint32_t other : depends_[i]) {
        auto [entry, first] = latest.try_emplace(plan_.instructions[other].stream, other);
        if (!first)
          entry->second = std::max(entry->second, other);
      }
      for (const auto& [stream, other] : latest) {
        uint32_t& known = reached[instruction.stream][stream];
        if (stream == instruction.stream || !before(known, other))
          continue;
        known = other;
        EventId& event = plan_.instructions[other].records;
        if (!event)
          event = EventId(plan_.events++);
        instruction.waits.push_back(event);
      }
    }
  }

  const Graph& graph_;
  Edges& edges_;
  const PlanKind kind_;
  const GroupId world_;
  const std::vector<bool>& member_; ///< of each group, whether the role is in it
  Plan plan_;
  std::map<ValueRef, SlotId> slots_;
  std::vector<uint32_t> maker_;         ///< of each slot
  std::map<ValueRef, uint32_t> tokens_; ///< who made each
  std::map<NodeId, uint32_t> instruction_of_;
  std::vector<std::vector<uint32_t>> depends_; ///< of each instruction, on earlier ones
};

GroupId world_of(PlanSet& plans) {
  std::set<DeviceIndex> all;
  for (const Group& group : plans.groups)
    all.insert(group.devices.begin(), group.devices.end());
  const std::vector<DeviceIndex> devices(all.begin(), all.end());
  for (size_t g = 0; g < plans.groups.size(); ++g)
    if (plans.groups[g].devices == devices)
      return GroupId(g);
  plans.groups.push_back({.devices = devices});
  return GroupId(plans.groups.size() - 1);
}

} // namespace

PlanSet emit_plans(const CompileOptions& options, const Graph& graph) {
  PlanSet plans;
  plans.kind = options.kind;
  plans.epoch = options.epoch;
  plans.model = graph.model->fingerprint();
  plans.batch = graph.model->batch;
  plans.microbatches = graph.microbatches;
  plans.groups = graph.groups;
  plans.buckets = graph.buckets;
  plans.world = world_of(plans);
  for (size_t d = 0; d < graph.strategy->directives.size(); ++d)
    plans.directives.push_back(graph.strategy->describe(d));

  const GraphIndex index(graph);
  const std::vector<const Node*> order = linearize(graph, index);
  Edges edges(graph);
  std::vector<std::vector<Placed>> by_group(plans.groups.size());
  std::set<std::pair<GroupId, GroupId>> transfers;
  for (uint32_t i = 0; i < order.size(); ++i) {
    const Node& node = *order[i];
    by_group[node.id.at.value].push_back({i, &node});
    if (node.id.op == Op::Send)
      transfers.insert({node.id.at, node.id.peer});
    if (node.id.op == Op::Send || node.id.op == Op::SendMirror)
      edges.of(node); // numbered in the order of the whole graph
  }

  // Devices with the same groups, and the same transfers within themselves, share a role.
  std::vector<bool> placed(plans.groups.size()); // groups that nodes run on, for the names
  for (size_t g = 0; g < by_group.size(); ++g)
    placed[g] = std::any_of(by_group[g].begin(), by_group[g].end(),
                            [](const Placed& p) { return p.node->id.op == Op::Forward; });
  using RoleKey = std::pair<std::vector<GroupId>, std::set<std::pair<GroupId, GroupId>>>;
  std::map<RoleKey, RoleId> roles;
  for (DeviceIndex device : plans.groups[plans.world.value].devices) {
    RoleKey key;
    for (size_t g = 0; g < plans.groups.size(); ++g)
      if (plans.rank_in(GroupId(g), device) >= 0)
        key.first.push_back(GroupId(g));
    for (const auto& [from, to] : transfers)
      if (const int rank = plans.rank_in(from, device);
          rank >= 0 && rank == plans.rank_in(to, device))
        key.second.insert({from, to});
    auto [role, added] = roles.try_emplace(key, RoleId(plans.roles.size()));
    plans.devices[device] = role->second;
    if (!added)
      continue;

    std::vector<bool> member(plans.groups.size());
    std::vector<Placed> nodes;
    std::string name;
    for (GroupId group : key.first) {
      member[group.value] = true;
      nodes.insert(nodes.end(), by_group[group.value].begin(), by_group[group.value].end());
      if (placed[group.value])
        name += fmt::format("{}g{}", name.empty() ? "" : "+", group.value);
    }
    std::sort(nodes.begin(), nodes.end(),
              [](const Placed& a, const Placed& b) { return a.position < b.position; });
    plans.roles.push_back({std::move(name), key.first});
    plans.plans.push_back(
        Emitter(graph, edges, options.kind, plans.world, member).run(nodes, key.second));
  }
  plans.edges = std::move(edges.names);
  return plans;
}

} // namespace piper::compiler
