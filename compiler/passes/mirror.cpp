#include "compiler/passes/mirror.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace piper::compiler {

using namespace ir;

namespace {

/// Of each parameter.
std::vector<size_t> buckets_of_params(const Graph& graph) {
  std::vector<size_t> bucket_of(graph.model->params.size());
  for (size_t b = 0; b < graph.buckets.size(); ++b)
    for (ParamId param : graph.buckets[b].params)
      bucket_of[param.value] = b;
  return bucket_of;
}

/// What the directives ask for of a bucket.
struct Wish {
  int64_t copies = 0;
  size_t directive = 0;
};

Result<std::vector<Wish>> wishes(const Graph& graph) {
  std::vector<Wish> of_bucket(graph.buckets.size());
  const std::vector<size_t> bucket_of = buckets_of_params(graph);
  const Strategy& strategy = *graph.strategy;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* mirror = std::get_if<Mirror>(&strategy.directives[d].body);
    if (!mirror)
      continue;
    PIPER_TRY(const std::vector<CallId> calls, select_calls(graph, d, mirror->filter));
    for (CallId call : calls)
      for (ParamId param : graph.model->call(call).params)
        if (Wish& wish = of_bucket[bucket_of[param.value]]; wish.copies < mirror->copies)
          wish = {mirror->copies, d};
  }
  return of_bucket;
}

/// Every device that runs something, ascending.
std::vector<DeviceIndex> all_devices(const Graph& graph) {
  std::vector<DeviceIndex> devices;
  for (const Group& group : graph.groups)
    devices.insert(devices.end(), group.devices.begin(), group.devices.end());
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

/// Of each bucket, what says that its gradients are complete; the commit waits for it.
std::vector<std::vector<ValueRef>> gradients(const Graph& graph, ValueRef& committed) {
  const std::vector<size_t> bucket_of = buckets_of_params(graph);
  std::vector<std::vector<ValueRef>> complete(graph.buckets.size());
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes()) {
      if (node.id.op != Op::Commit)
        continue;
      committed = node.outputs.front();
      for (const ValueRef& ref : node.inputs) {
        std::set<size_t> of;
        if (ref.kind == ValueKind::Reduced)
          of.insert(ref.subject);
        else
          for (ParamId param : graph.model->calls[ref.subject].params)
            of.insert(bucket_of[param.value]);
        for (size_t bucket : of)
          complete[bucket].push_back(ref);
      }
    }
  return complete;
}

} // namespace

Result<void> place_mirrors(Graph& graph) {
  PIPER_TRY(const std::vector<Wish> wished, wishes(graph));
  const std::vector<DeviceIndex> world = all_devices(graph);
  const auto count = static_cast<int64_t>(world.size());
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    const Group group = graph.groups[graph.buckets[b].group.value];
    const int64_t copies = wished[b].copies;
    if (copies == 0 || owners(graph.buckets[b], group) > 1)
      continue;
    if (graph.buckets[b].fused_update)
      return user_error(
          fmt::format("the update of bucket {} is fused into its reduction: it does not wait until "
                      "its mirrors have the gradients",
                      graph.buckets[b].name),
          graph.strategy->describe(wished[b].directive),
          "leave its calls out of the filter of one of the two");
    if (copies >= count)
      return user_error(
          fmt::format("bucket {} and {} mirror{} of it need {} devices, the strategy uses {}",
                      graph.buckets[b].name, copies, copies > 1 ? "s" : "", copies + 1, count),
          graph.strategy->describe(wished[b].directive),
          count > 1 ? fmt::format("ask for {} or less, or use more devices", count - 1)
                    : "leave it out, or use more devices");
    for (int64_t m = 1; m <= copies; ++m) {
      const int64_t shift = m * count / (copies + 1); // 1 to count - 1, for each m another
      Group its = group;
      for (DeviceIndex& device : its.devices) {
        const auto at = std::lower_bound(world.begin(), world.end(), device) - world.begin();
        device = world[static_cast<size_t>((at + shift) % count)];
      }
      graph.buckets[b].mirrors.push_back(intern_group(graph, std::move(its)));
    }
  }
  return {};
}

Result<Graph> mirror(const CompileOptions& options, const Graph& graph) {
  const bool any = std::any_of(graph.buckets.begin(), graph.buckets.end(),
                               [](const Bucket& bucket) { return !bucket.mirrors.empty(); });
  if (!any || options.kind == PlanKind::Eval)
    return graph;

  ValueRef committed;
  const std::vector<std::vector<ValueRef>> complete = gradients(graph, committed);

  std::vector<std::vector<Node>> added(graph.buckets.size());
  std::vector<ValueRef> mirrored; // the commit waits for it, and for the sends
  std::vector<TemporalEdge> sent;
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    const auto subject = static_cast<uint32_t>(b);
    const GroupId home = graph.buckets[b].group;
    for (GroupId at : graph.buckets[b].mirrors) {
      Node send, recv, update;
      send.id = {.op = Op::SendMirror, .subject = subject, .at = home, .peer = at};
      send.inputs = complete[b];
      recv.id = {.op = Op::RecvMirror, .subject = subject, .at = at, .peer = home};
      recv.outputs = {{.kind = ValueKind::Mirrored, .subject = subject, .at = at}};
      recv.after = {{.before = send.id}};
      update.id = {.op = Op::UpdateMirror, .subject = subject, .at = at};
      update.inputs = {committed};
      mirrored.push_back(recv.outputs.front());
      sent.push_back({.before = send.id});
      for (Node* node : {&send, &recv, &update})
        added[b].push_back(std::move(*node));
    }
  }
  return map_regions(graph, [&](const Region& region) {
    std::vector<Node> nodes = region.nodes();
    uint32_t bucket = UINT32_MAX;
    for (Node& node : nodes) {
      if (node.id.op == Op::Update)
        bucket = node.id.subject;
      if (node.id.op != Op::Commit)
        continue;
      node.inputs.insert(node.inputs.end(), mirrored.begin(), mirrored.end());
      node.after.insert(node.after.end(), sent.begin(), sent.end());
    }
    if (bucket != UINT32_MAX)
      nodes.insert(nodes.end(), added[bucket].begin(), added[bucket].end());
    return nodes;
  });
}

} // namespace piper::compiler
