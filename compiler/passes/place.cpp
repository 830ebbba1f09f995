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
  size_t place = SIZE_MAX, replicate = SIZE_MAX; ///< the directives, if any
  size_t directive() const { return place != SIZE_MAX ? place : replicate; }
};

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

/// A call, its backward and all its microbatches run on one group: what it keeps for its backward
/// does not travel.
Result<void> check_whole(const Graph& graph, size_t directive, const Filter& filter) {
  const std::string& microbatches =
      graph.microbatch_tag.empty() ? std::string("MB") : graph.microbatch_tag;
  for (const std::string& tag : {std::string("PASS"), microbatches})
    if (find_term(filter, tag) && find_term(filter, tag)->kind != TagMatch::Kind::Any)
      return user_error(
          fmt::format("the filter {} places only a part of a call", filter.to_json()),
          graph.strategy->describe(directive),
          fmt::format("leave out {}: passes and microbatches of a call share a device", tag));
  return {};
}

Result<std::vector<Placement>> read_directives(const CompileOptions& options, const Graph& graph) {
  const Strategy& strategy = *graph.strategy;
  std::vector<Placement> placements(graph.model->calls.size());
  auto apply = [&](size_t d, const Filter& filter, const std::vector<DeviceIndex>& devices,
                   size_t Placement::*which) -> Result<void> {
    PIPER_CHECK_OK(check_whole(graph, d, filter));
    PIPER_CHECK_OK(check_devices(graph, options, d, devices));
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, filter));
    for (CallId call : calls) {
      Placement& placement = placements[call.value];
      if (placement.devices && *placement.devices != devices)
        return user_error(fmt::format("'{}' is placed on {} here and on {} by {}",
                                      graph.model->call(call).name, list(devices),
                                      list(*placement.devices),
                                      strategy.describe(placement.directive())),
                          strategy.describe(d), "place each call once, or on the same devices");
      placement.devices = &devices;
      placement.*which = d;
    }
    return {};
  };
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    if (const auto* place = std::get_if<Place>(&strategy.directives[d].body))
      PIPER_CHECK_OK(apply(d, place->filter, place->devices, &Placement::place));
    else if (const auto* replicate = std::get_if<Replicate>(&strategy.directives[d].body))
      PIPER_CHECK_OK(apply(d, replicate->filter, replicate->devices, &Placement::replicate));
  }

  std::vector<std::string> unplaced;
  std::string parameter;
  for (size_t c = 0; c < placements.size(); ++c) {
    const ModelCall& call = graph.model->calls[c];
    if (!placements[c].devices) {
      unplaced.push_back(call.name);
      if (parameter.empty() && !call.params.empty())
        parameter = graph.model->param(call.params.front()).name;
    } else if (placements[c].devices->size() > 1 && placements[c].replicate == SIZE_MAX) {
      return user_error(
          fmt::format("'{}' is placed on {} devices, but nothing says how they share it", call.name,
                      placements[c].devices->size()),
          strategy.describe(placements[c].place),
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

/// The group of each call; graph.groups in the order in which the trace first needs them.
Result<std::vector<GroupId>> make_groups(Graph& graph, const std::vector<Placement>& placements) {
  std::map<std::vector<DeviceIndex>, GroupId> known;
  std::vector<GroupId> of_call;
  for (size_t c = 0; c < placements.size(); ++c) {
    const std::vector<DeviceIndex>& devices = *placements[c].devices;
    auto [entry, added] = known.try_emplace(devices, GroupId(graph.groups.size()));
    if (added)
      graph.groups.push_back({devices, devices.size() > 1});
    of_call.push_back(entry->second);
    const size_t replicas = graph.groups.front().devices.size();
    if (devices.size() != replicas)
      return user_error(fmt::format("'{}' runs on {} and '{}' on {}: they have {} and {} replicas",
                                    graph.model->calls[0].name, list(graph.groups.front().devices),
                                    graph.model->calls[c].name, list(devices), replicas,
                                    devices.size()),
                        graph.strategy->describe(placements[c].directive()),
                        "give every part of the model the same number of replicas");
  }
  const int64_t pieces = graph.microbatches * static_cast<int64_t>(graph.groups[0].devices.size());
  if (graph.model->batch % pieces != 0)
    return user_error(
        fmt::format("the batch of {} rows is not divisible over {} microbatches x {} replicas",
                    graph.model->batch, graph.microbatches, graph.groups[0].devices.size()),
        graph.strategy->describe(placements[0].directive()),
        fmt::format("choose a batch that is a multiple of {}", pieces));
  return of_call;
}

} // namespace

Result<Graph> place(const CompileOptions& options, const Graph& unplaced) {
  const ModelSpec& model = *unplaced.model;
  PIPER_TRY(std::vector<Placement> placements, read_directives(options, unplaced));
  Graph graph = unplaced;
  PIPER_TRY(std::vector<GroupId> of_call, make_groups(graph, placements));

  // Add, Seed and Loss run where the value is made.
  auto group_of = [&](const Node& node) {
    if (is_compute(node.id.op))
      return of_call[node.id.subject];
    return of_call[model.values[node.id.subject].producer.value];
  };

  // Where each value is made, whatever the microbatch. A model input is made wherever it is read.
  using Key = std::tuple<ValueKind, uint32_t, uint32_t>;
  std::map<Key, GroupId> made;
  std::vector<std::vector<GroupId>> input_readers(model.values.size());
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      if (node.microbatch() == 0 && node.id.op != Op::Input)
        for (const ValueRef& ref : node.outputs)
          made[{ref.kind, ref.subject, ref.part}] = group_of(node);
  for (size_t c = 0; c < model.calls.size(); ++c)
    for (ValueId v : model.calls[c].inputs) {
      auto& readers = input_readers[v.value];
      if (!model.value(v).producer &&
          std::find(readers.begin(), readers.end(), of_call[c]) == readers.end())
        readers.push_back(of_call[c]);
    }

  const double replicas = static_cast<double>(graph.groups.front().devices.size());
  return map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes;
    nodes.reserve(region.nodes().size());
    for (const Node& node : region.nodes()) {
      if (node.id.op == Op::Input) {
        for (GroupId reader : input_readers[node.id.subject]) {
          Node copy = node;
          copy.id.at = copy.outputs.front().at = reader;
          nodes.push_back(std::move(copy));
        }
        continue;
      }
      Node placed = node;
      placed.id.at = group_of(node);
      for (ValueRef& ref : placed.inputs) {
        const auto at = made.find({ref.kind, ref.subject, ref.part});
        ref.at = at == made.end() ? placed.id.at : at->second;
      }
      for (ValueRef& ref : placed.outputs)
        ref.at = placed.id.at;
      if (node.id.op == Op::Seed)
        placed.scale /= replicas;
      if (is_compute(node.id.op))
        placed.directive = static_cast<int32_t>(placements[node.id.subject].directive());
      nodes.push_back(std::move(placed));
    }
    return nodes;
  });
}

} // namespace piper::compiler
