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
    return (place && microbatch_term(graph, place->filter)) ||
           (replicate && microbatch_term(graph, replicate->filter));
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

Result<ByCall<Placement>> read_directives(const CompileOptions& options, const Graph& graph) {
  const Strategy& strategy = *graph.strategy;
  ByCall<Placement> placements(graph.model->calls.size(),
                               places_apart(graph) ? graph.microbatches : 1);
  auto apply = [&](size_t d, const Filter& filter, const std::vector<DeviceIndex>& devices,
                   size_t Placement::*which) -> Result<void> {
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
        placement.devices = &devices;
        placement.*which = d;
      }
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
  for (size_t c = 0; c < placements.calls(); ++c)
    for (int32_t m = 0; m < placements.parts(); ++m) {
      const ModelCall& call = graph.model->calls[c];
      const Placement& placement = placements.at(c, m);
      if (!placement.devices) {
        unplaced.push_back(
            placements.parts() == 1 ? call.name : fmt::format("{} of microbatch {}", call.name, m));
        if (parameter.empty() && !call.params.empty())
          parameter = graph.model->param(call.params.front()).name;
      } else if (placement.devices->size() > 1 && placement.replicate == SIZE_MAX) {
        return user_error(
            fmt::format("'{}' is placed on {} devices, but nothing says how they share it",
                        call.name, placement.devices->size()),
            strategy.describe(placement.place),
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
Result<ByCall<GroupId>> make_groups(Graph& graph, const ByCall<Placement>& placements) {
  std::map<std::vector<DeviceIndex>, GroupId> known;
  ByCall<GroupId> of_call(placements.calls(), placements.parts());
  for (size_t c = 0; c < placements.calls(); ++c)
    for (int32_t m = 0; m < placements.parts(); ++m) {
      const std::vector<DeviceIndex>& devices = *placements.at(c, m).devices;
      auto [entry, added] = known.try_emplace(devices, GroupId(graph.groups.size()));
      if (added)
        graph.groups.push_back({devices, devices.size() > 1});
      of_call.at(c, m) = entry->second;
      const size_t replicas = graph.groups.front().devices.size();
      if (devices.size() != replicas)
        return user_error(
            fmt::format("'{}' runs on {} and '{}' on {}: they have {} and {} replicas",
                        graph.model->calls[0].name, list(graph.groups.front().devices),
                        graph.model->calls[c].name, list(devices), replicas, devices.size()),
            graph.strategy->describe(placements.at(c, m).directive()),
            "give every part of the model the same number of replicas");
    }
  const int64_t pieces = graph.microbatches * static_cast<int64_t>(graph.groups[0].devices.size());
  if (graph.model->batch % pieces != 0)
    return user_error(
        fmt::format("the batch of {} rows is not divisible over {} microbatches x {} replicas",
                    graph.model->batch, graph.microbatches, graph.groups[0].devices.size()),
        graph.strategy->describe(placements.at(0, 0).directive()),
        fmt::format("choose a batch that is a multiple of {}", pieces));
  return of_call;
}

} // namespace

Result<Graph> place(const CompileOptions& options, const Graph& unplaced) {
  const ModelSpec& model = *unplaced.model;
  PIPER_TRY(const ByCall<Placement> placements, read_directives(options, unplaced));
  Graph graph = unplaced;
  PIPER_TRY(const ByCall<GroupId> of_call, make_groups(graph, placements));

  // Add, Seed and Loss run where the value is made.
  auto group_of = [&](const Node& node) {
    const uint32_t call =
        is_compute(node.id.op) ? node.id.subject : model.values[node.id.subject].producer.value;
    return of_call.at(call, node.microbatch());
  };

  // Where each value is made. A model input is made wherever it is read.
  using Key = std::tuple<ValueKind, uint32_t, uint32_t>;
  std::vector<std::map<Key, GroupId>> made(of_call.parts());
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      if (node.microbatch() < of_call.parts() && node.id.op != Op::Input)
        for (const ValueRef& ref : node.outputs)
          made[node.microbatch()][{ref.kind, ref.subject, ref.part}] = group_of(node);
  ByCall<std::vector<GroupId>> input_readers(model.values.size(), of_call.parts());
  for (size_t c = 0; c < model.calls.size(); ++c)
    for (ValueId v : model.calls[c].inputs)
      for (int32_t m = 0; m < of_call.parts(); ++m) {
        auto& readers = input_readers.at(v.value, m);
        const GroupId group = of_call.at(c, m);
        if (!model.value(v).producer &&
            std::find(readers.begin(), readers.end(), group) == readers.end())
          readers.push_back(group);
      }

  const double replicas = static_cast<double>(graph.groups.front().devices.size());
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
      placed.id.at = group_of(node);
      const auto& homes = made[of_call.parts() == 1 ? 0 : node.microbatch()];
      for (ValueRef& ref : placed.inputs) {
        const auto at = homes.find({ref.kind, ref.subject, ref.part});
        ref.at = at == homes.end() ? placed.id.at : at->second;
      }
      for (ValueRef& ref : placed.outputs)
        ref.at = placed.id.at;
      if (node.id.op == Op::Seed)
        placed.scale /= replicas;
      if (is_compute(node.id.op))
        placed.directive =
            static_cast<int32_t>(placements.at(node.id.subject, node.microbatch()).directive());
      nodes.push_back(std::move(placed));
    }
    return nodes;
  });
}

} // namespace piper::compiler
