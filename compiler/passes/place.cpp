#include "compiler/passes/place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace piper::compiler {

using namespace ir;

namespace {

std::string list(const std::vector<DeviceIndex>& devices) {
  return fmt::format("[{}]", fmt::join(devices, ", "));
}

/// What the directives say of one call.
struct Placement {
  const std::vector<DeviceIndex>* devices = nullptr;
  /// The directives, if any: `tensors` is a shard_tensor, `experts` a shard.
  size_t place = SIZE_MAX, replicate = SIZE_MAX, tensors = SIZE_MAX, experts = SIZE_MAX;
  uint32_t tensor_ways = 1, expert_ways = 1;
  Layout layout = Layout::Whole;
  uint32_t ways() const { return layout == Layout::Experts ? expert_ways : tensor_ways; }
  size_t directive() const {
    for (size_t each : {place, replicate, tensors})
      if (each != SIZE_MAX)
        return each;
    return experts;
  }
};

/// A T of each call; of each call and microbatch where a directive places microbatches apart.
template <class T> class ByCall {
public:
  ByCall(size_t calls, int64_t parts) : calls_(calls), list_(calls * parts) {}
  int32_t parts() const { return static_cast<int32_t>(list_.size() / calls_); }
  size_t calls() const { return calls_; }
  /// Of a microbatch; without parts it is the same of all.
  T& at(size_t call, int32_t microbatch) { return list_[part(microbatch) * calls_ + call]; }
  const T& at(size_t call, int32_t microbatch) const {
    return list_[part(microbatch) * calls_ + call];
  }

private:
  size_t part(int32_t microbatch) const { return list_.size() == calls_ ? 0 : microbatch; }
  size_t calls_;
  std::vector<T> list_;
};

const TagMatch* microbatch_term(const Graph& graph, const Filter& filter) {
  const TagMatch* term = find_term(filter, graph.microbatch_tag);
  return term && term->kind == TagMatch::Kind::OneOf ? term : nullptr;
}

/// Whether a directive places some microbatches of a call apart from others.
bool places_apart(const Graph& graph) {
  const auto& directives = graph.strategy->directives;
  return std::any_of(directives.begin(), directives.end(), [&](const Directive& d) {
    const auto* place = std::get_if<Place>(&d.body);
    const auto* replicate = std::get_if<Replicate>(&d.body);
    const auto* experts = std::get_if<Shard>(&d.body);
    const auto* tensors = std::get_if<ShardTensor>(&d.body);
    return (place && microbatch_term(graph, place->filter)) ||
           (replicate && microbatch_term(graph, replicate->filter)) ||
           (experts && microbatch_term(graph, experts->filter)) ||
           (tensors && microbatch_term(graph, tensors->filter));
  });
}

Result<void> check_devices(const Graph& graph, const CompileOptions& options, size_t directive,
                           const std::vector<DeviceIndex>& devices) {
  const std::string where = graph.strategy->describe(directive);
  if (devices.empty())
    return user_error("no devices are named", where, "name at least one: \"devices\": [0]");
  if (std::set<DeviceIndex>(devices.begin(), devices.end()).size() != devices.size())
    return user_error("a device is named twice in " + list(devices), where,
                      "each rank needs a device of its own");
  for (DeviceIndex device : devices)
    if (options.devices != 0 && device >= options.devices)
      return user_error(fmt::format("device {} is out of range", device), where,
                        fmt::format("the job has {} device{}: {}", options.devices,
                                    options.devices == 1 ? "" : "s",
                                    options.devices == 1
                                        ? std::string("0")
                                        : fmt::format("0 to {}", options.devices - 1)));
  return {};
}

/// What a call keeps for its backward does not travel.
Result<void> check_whole(const Graph& graph, size_t directive, const Filter& filter) {
  const TagMatch* pass = find_term(filter, "PASS");
  const TagMatch* microbatch = find_term(filter, graph.microbatch_tag);
  if ((pass && pass->kind != TagMatch::Kind::Any) ||
      (microbatch && microbatch->kind == TagMatch::Kind::Absent))
    return user_error(fmt::format("the filter {} places only a part of a call", filter.to_json()),
                      graph.strategy->describe(directive),
                      "leave out PASS: the passes of a microbatch through a call share a device");
  return {};
}

/// How the ranks of a block share a call, by a directive that shards it.
struct Sharding {
  size_t directive;
  uint32_t ways;
  bool experts, sequence;

  Layout layout_of(const ModelCall& call) const {
    if (experts)
      return Layout::Experts;
    if (call.cut == Cut::Tensor)
      return Layout::Weights;
    return call.cut == Cut::Tokens && sequence ? Layout::Tokens : Layout::Whole;
  }
};

Result<Sharding> check_sharding(const Graph& graph, size_t directive,
                                const std::vector<DeviceIndex>& devices, uint32_t ways,
                                bool experts, bool sequence) {
  const auto count = static_cast<uint32_t>(devices.size());
  if (ways == 0)
    ways = count;
  if (count % ways != 0)
    return user_error(fmt::format("{} devices do not make blocks of {}", count, ways),
                      graph.strategy->describe(directive), "name a multiple of \"ways\" devices");
  return Sharding{directive, ways, experts, sequence};
}

/// The call can be shared as the directive says.
Result<void> check_cut(const Graph& graph, const Sharding& sharding, const ModelCall& call) {
  const std::string where = graph.strategy->describe(sharding.directive);
  if (sharding.experts && call.cut != Cut::Experts)
    return user_error(fmt::format("'{}' has no experts to be spread over devices", call.name),
                      where, "match the calls that hold experts alone");
  const Layout layout = sharding.layout_of(call);
  const int64_t ways = sharding.ways;
  if ((layout == Layout::Experts || layout == Layout::Weights) && call.pieces % ways != 0)
    return user_error(fmt::format("'{}' makes {} pieces, which {} devices cannot share evenly",
                                  call.name, call.pieces, ways),
                      where, "choose a number of devices that divides the pieces");
  if (layout == Layout::Tokens)
    for (const auto* list : {&call.inputs, &call.outputs})
      for (ValueId id : *list)
        if (const ModelValue& value = graph.model->value(id); value.type.dims[1] % ways != 0)
          return user_error(fmt::format("'{}' is {}: {} devices cannot share its tokens evenly",
                                        value.name, value.type.to_string(), ways),
                            where, "choose a number of devices that divides the tokens");
  return {};
}

/// Tensor parallelism that cuts nothing would only repeat all work.
Result<void> check_any_cut(const Graph& graph, const ByCall<Placement>& placements) {
  const Placement* sharded = nullptr;
  for (size_t c = 0; c < placements.calls(); ++c)
    for (int32_t m = 0; m < placements.parts(); ++m)
      if (const Placement& placement = placements.at(c, m); placement.tensors != SIZE_MAX) {
        if (placement.layout == Layout::Weights || placement.layout == Layout::Tokens)
          return {};
        sharded = &placement;
      }
  if (!sharded)
    return {};
  return user_error("none of the calls that are sharded can be cut",
                    graph.strategy->describe(sharded->tensors),
                    "say in the model how calls are cut (CallOptions::cut), or use replicate");
}

Result<ByCall<Placement>> read_directives(const CompileOptions& options, const Graph& graph) {
  const Strategy& strategy = *graph.strategy;
  ByCall<Placement> placements(graph.model->calls.size(),
                               places_apart(graph) ? graph.microbatches : 1);
  auto apply = [&](size_t d, const Filter& filter, const std::vector<DeviceIndex>& devices,
                   size_t Placement::*which, const Sharding* sharding = nullptr) -> Result<void> {
    PIPER_CHECK_OK(check_whole(graph, d, filter));
    PIPER_CHECK_OK(check_devices(graph, options, d, devices));
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, filter));
    const TagMatch* some = microbatch_term(graph, filter);
    for (int32_t m = 0; m < placements.parts(); ++m) {
      if (some && std::find(some->indices.begin(), some->indices.end(), TagIndex(int64_t{m})) ==
                      some->indices.end())
        continue;
      for (CallId call : calls) {
        Placement& placement = placements.at(call.value, m);
        if (placement.devices && *placement.devices != devices)
          return user_error(fmt::format("'{}' is placed on {} here and on {} by {}",
                                        graph.model->call(call).name, list(devices),
                                        list(*placement.devices),
                                        strategy.describe(placement.directive())),
                            strategy.describe(d), "place each call once, or on the same devices");
        if (sharding && placement.*which != SIZE_MAX)
          return user_error(fmt::format("'{}' is sharded here and by {}",
                                        graph.model->call(call).name,
                                        strategy.describe(placement.*which)),
                            strategy.describe(d), "shard each call once");
        placement.devices = &devices;
        placement.*which = d;
        if (!sharding)
          continue;
        PIPER_CHECK_OK(check_cut(graph, *sharding, graph.model->call(call)));
        (sharding->experts ? placement.expert_ways : placement.tensor_ways) = sharding->ways;
        if (placement.layout != Layout::Experts) // which is about the call's own rows
          placement.layout = sharding->layout_of(graph.model->call(call));
      }
    }
    return {};
  };
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    if (const auto* place = std::get_if<Place>(&strategy.directives[d].body))
      PIPER_CHECK_OK(apply(d, place->filter, place->devices, &Placement::place));
    else if (const auto* replicate = std::get_if<Replicate>(&strategy.directives[d].body))
      PIPER_CHECK_OK(apply(d, replicate->filter, replicate->devices, &Placement::replicate));
    else if (const auto* experts = std::get_if<Shard>(&strategy.directives[d].body)) {
      PIPER_TRY(const Sharding sharding,
                check_sharding(graph, d, experts->devices, experts->ways, true, false));
      PIPER_CHECK_OK(apply(d, experts->filter, experts->devices, &Placement::experts, &sharding));
    } else if (const auto* tensors = std::get_if<ShardTensor>(&strategy.directives[d].body)) {
      PIPER_TRY(const Sharding sharding, check_sharding(graph, d, tensors->devices, tensors->ways,
                                                        false, tensors->sequence));
      PIPER_CHECK_OK(apply(d, tensors->filter, tensors->devices, &Placement::tensors, &sharding));
    }
  }

  PIPER_CHECK_OK(check_any_cut(graph, placements));
  std::vector<std::string> unplaced;
  std::string parameter;
  for (size_t c = 0; c < placements.calls(); ++c)
    for (int32_t m = 0; m < placements.parts(); ++m) {
      const ModelCall& call = graph.model->calls[c];
      const Placement& placement = placements.at(c, m);
      if (!placement.devices) {
        unplaced.push_back(
            placements.parts() == 1 ? call.name : fmt::format("{} of microbatch {}", call.name, m));
        if (parameter.empty() && !call.params.empty())
          parameter = graph.model->param(call.params.front()).name;
      } else if (placement.expert_ways % placement.tensor_ways != 0 &&
                 placement.layout == Layout::Experts) {
        return user_error(
            fmt::format("'{}' has its experts on {} devices in a row, of which {} share rows by {}",
                        call.name, placement.expert_ways, placement.tensor_ways,
                        strategy.describe(placement.tensors)),
            strategy.describe(placement.experts),
            fmt::format("choose a multiple of {} \"ways\"", placement.tensor_ways));
      } else if (placement.devices->size() > placement.ways() && placement.replicate == SIZE_MAX) {
        return user_error(
            fmt::format("'{}' is placed on {} devices, but nothing says how they share it",
                        call.name, placement.devices->size()),
            strategy.describe(placement.directive()),
            "add a replicate over the same devices, or place it on one");
      }
    }
  if (!unplaced.empty()) {
    const size_t shown = std::min<size_t>(unplaced.size(), 5);
    return user_error(
        fmt::format(
            "no directive places {}{}{}",
            fmt::join(unplaced.begin(), unplaced.begin() + shown, ", "),
            unplaced.size() > shown ? fmt::format(" and {} more", unplaced.size() - shown) : "",
            parameter.empty() ? ""
                              : fmt::format(" (parameter {} would be held nowhere)", parameter)),
        strategy.name.empty() ? "strategy" : strategy.name,
        R"(add a place or replicate that matches, for instance {"op": "place", "filter": {}, "devices": [0]})");
  }
  return placements;
}

/// The groups of a call's node, of what it reads and of what it makes.
struct Homes {
  GroupId self, reads, makes;
};

Homes make_homes(Graph& graph, const Placement& placement) {
  Group group{.devices = *placement.devices,
              .replicated = placement.devices->size() > placement.tensor_ways,
              .ways = placement.ways(),
              .layout = placement.layout};
  if (group.layout == Layout::Experts)
    group.outside = placement.tensor_ways;
  const GroupId self = intern_group(graph, std::move(group));
  return {self, with_layout(graph, self, reads(placement.layout)),
          with_layout(graph, self, makes(placement.layout))};
}

/// Every part of the model cuts the batch into as many shares, over as many devices: a value goes
/// from a rank to the same rank of the next group.
Result<void> check_alike(const Graph& graph, const Placement& placement, GroupId id,
                         const std::string& call, const Group& first,
                         const std::string& first_call) {
  const Group& group = graph.groups[id.value];
  if (group.shares() != first.shares())
    return user_error(fmt::format("'{}' runs on {} and '{}' on {}: they have {} and {} replicas",
                                  first_call, list(first.devices), call, list(group.devices),
                                  first.shares(), group.shares()),
                      graph.strategy->describe(placement.directive()),
                      group.devices == first.devices
                          ? "let a shard_tensor match all parts of the model, also those that it "
                            "does not cut"
                          : "give every part of the model the same number of replicas");
  if (group.size() != first.size())
    return user_error(fmt::format("'{}' runs on {} and '{}' on {}: {} and {} devices share a row",
                                  first_call, list(first.devices), call, list(group.devices),
                                  first.size() / first.shares(), group.size() / group.shares()),
                      graph.strategy->describe(placement.directive()),
                      "shard every part of the model in the same number of ways");
  return {};
}

/// The groups of each call; graph.groups in the order in which the trace first needs them.
Result<ByCall<Homes>> make_groups(Graph& graph, const ByCall<Placement>& placements) {
  ByCall<Homes> of_call(placements.calls(), placements.parts());
  const ModelSpec& model = *graph.model;
  for (size_t c = 0; c < placements.calls(); ++c)
    for (int32_t m = 0; m < placements.parts(); ++m) {
      of_call.at(c, m) = make_homes(graph, placements.at(c, m));
      PIPER_CHECK_OK(check_alike(graph, placements.at(c, m), of_call.at(c, m).self,
                                 model.calls[c].name, graph.groups.front(), model.calls[0].name));
    }
  const CallId last = model.value(model.loss).producer;
  for (int32_t m = 0; m < placements.parts(); ++m)
    if (const Placement& placement = placements.at(last.value, m);
        placement.layout != Layout::Whole)
      return user_error(
          fmt::format("'{}' makes the loss and cannot be sharded", model.call(last).name),
          graph.strategy->describe(placement.directive()), "leave it out of the filter");
  const int64_t shares = graph.groups[0].shares();
  const int64_t pieces = graph.microbatches * shares;
  if (model.batch % pieces != 0)
    return user_error(
        fmt::format("the batch of {} rows is not divisible over {} microbatches x {} replicas",
                    model.batch, graph.microbatches, shares),
        graph.strategy->describe(placements.at(0, 0).directive()),
        fmt::format("choose a batch that is a multiple of {}", pieces));
  return of_call;
}

} // namespace

Result<Graph> place(const CompileOptions& options, const Graph& unplaced) {
  const ModelSpec& model = *unplaced.model;
  PIPER_TRY(const ByCall<Placement> placements, read_directives(options, unplaced));
  Graph graph = unplaced;
  PIPER_TRY(const ByCall<Homes> of_call, make_groups(graph, placements));

  // Add, Seed and Loss run where the gradient, or the value, is wanted.
  auto homes_of = [&](const Node& node) -> const Homes& {
    const uint32_t call =
        is_compute(node.id.op) ? node.id.subject : model.values[node.id.subject].producer.value;
    return of_call.at(call, node.microbatch());
  };
  // What a call leaves for itself stays with it, what it reads and makes has layouts of its own.
  auto is_tensor = [](const ValueRef& ref) {
    return ref.kind == ValueKind::Activation || ref.kind == ValueKind::Gradient ||
           ref.kind == ValueKind::GradientPart;
  };
  auto outputs_at = [&](const Node& node, const ValueRef& ref) {
    const Homes& homes = homes_of(node);
    if (!is_compute(node.id.op))
      return homes.reads;
    return is_tensor(ref) ? homes.makes : homes.self;
  };

  // Where each value is made. A model input is made wherever it is read, whole.
  using Key = std::tuple<ValueKind, uint32_t, uint32_t>;
  std::vector<std::map<Key, GroupId>> made(of_call.parts());
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      if (node.microbatch() < of_call.parts() && node.id.op != Op::Input)
        for (const ValueRef& ref : node.outputs)
          made[node.microbatch()][{ref.kind, ref.subject, ref.part}] = outputs_at(node, ref);
  ByCall<std::vector<GroupId>> input_readers(model.values.size(), of_call.parts());
  for (size_t c = 0; c < model.calls.size(); ++c)
    for (ValueId v : model.calls[c].inputs)
      for (int32_t m = 0; m < of_call.parts(); ++m) {
        if (model.value(v).producer)
          continue;
        auto& readers = input_readers.at(v.value, m);
        const GroupId group =
            intern_group(graph, graph.groups[of_call.at(c, m).reads.value].whole());
        if (std::find(readers.begin(), readers.end(), group) == readers.end())
          readers.push_back(group);
      }

  const double shares = static_cast<double>(graph.groups.front().shares());
  const std::vector<Group> groups = graph.groups;
  auto is_input = [&](const ValueRef& ref) {
    return ref.kind == ValueKind::Activation && !model.values[ref.subject].producer;
  };
  return map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes;
    nodes.reserve(region.nodes().size());
    for (const Node& node : region.nodes()) {
      if (node.id.op == Op::Input) {
        for (GroupId reader : input_readers.at(node.id.subject, node.microbatch())) {
          Node copy = node;
          copy.id.at = copy.outputs.front().at = reader;
          nodes.push_back(std::move(copy));
        }
        continue;
      }
      Node placed = node;
      const Homes& homes = homes_of(node);
      placed.id.at = is_compute(node.id.op) ? homes.self : homes.reads;
      const auto& at = made[of_call.parts() == 1 ? 0 : node.microbatch()];
      for (ValueRef& ref : placed.inputs)
        ref.at = is_input(ref)    ? find_group(graph, groups[homes.reads.value].whole())
                 : is_tensor(ref) ? at.at({ref.kind, ref.subject, ref.part})
                                  : homes.self;
      for (ValueRef& ref : placed.outputs)
        ref.at = outputs_at(node, ref);
      if (node.id.op == Op::Seed)
        placed.scale /= shares;
      if (is_compute(node.id.op))
        placed.directive =
            static_cast<int32_t>(placements.at(node.id.subject, node.microbatch()).directive());
      nodes.push_back(std::move(placed));
    }
    return nodes;
  });
}

} // namespace piper::compiler
