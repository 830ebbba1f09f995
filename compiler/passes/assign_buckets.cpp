#include "compiler/passes/assign_buckets.h"

#include "compiler/buckets.h"
#include "compiler/passes/mirror.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace piper::compiler {

using namespace ir;

namespace {

/// What each rank keeps only its shard of, each level implying the ones before, and what it keeps
/// in another memory.
struct Sharding {
  bool optimizer = false, grads = false, params = false;
  bool offload_optimizer = false, offload_params = false;
  int64_t within = kAll;  ///< replicas in a row that share out a whole one
  int32_t directive = -1; ///< that says so

  static constexpr int64_t kAll = INT64_MAX;
  static Sharding of(const Replicate& replicate, size_t directive) {
    return {.optimizer =
                replicate.shard_optimizer || replicate.shard_grads || replicate.shard_params,
            .grads = replicate.shard_grads,
            .params = replicate.shard_params,
            .within = replicate.shard_within > 0 ? replicate.shard_within : kAll,
            .directive = static_cast<int32_t>(directive)};
  }
  /// The most that both allow.
  Sharding operator&(const Sharding& other) const {
    return {.optimizer = optimizer && other.optimizer,
            .grads = grads && other.grads,
            .params = params && other.params,
            .offload_optimizer = offload_optimizer && other.offload_optimizer,
            .offload_params = offload_params && other.offload_params,
            .within = std::min(within, other.within),
            .directive = std::max(directive, other.directive)};
  }
};

/// What `replicate` and `offload` say of the calls on a group.
struct Replication {
  Sharding sharding;
  double bucket_mb = 0;
  int32_t offload = -1; ///< the directive that offloads its parameters
};

/// Where calls run, in ascending order. Several groups: each runs some of the microbatches.
using Homes = std::vector<GroupId>;

void add_once(Homes& homes, GroupId group) {
  const auto at = std::lower_bound(homes.begin(), homes.end(), group);
  if (at == homes.end() || *at != group)
    homes.insert(at, group);
}

/// The homes of each call, read off the graph.
std::vector<Homes> homes_of_calls(const Graph& graph) {
  std::vector<Homes> homes(graph.model->calls.size());
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      if (node.id.op == Op::Forward)
        add_once(homes[node.id.subject], node.id.at);
  return homes;
}

/// Replicas of the calls that `replicate` matches make whole sub-groups.
Result<void> check_within(const Graph& graph, size_t directive, const Replicate& replicate,
                          const Homes& homes) {
  const int64_t within = replicate.shard_within;
  if (within == 0)
    return {};
  const std::string where = graph.strategy->describe(directive);
  if (!Sharding::of(replicate, directive).optimizer)
    return user_error(
        "shard_within is given, but nothing is sharded", where,
        "add shard_optimizer (ZeRO-1), shard_grads (ZeRO-2) or shard_params (ZeRO-3), "
        "or leave shard_within out");
  if (within == 1)
    return user_error(
        "sub-groups of 1 replica shard nothing", where,
        "leave shard_within and what it shards out, or share it out within 2 replicas "
        "or more");
  for (GroupId home : homes)
    if (const int64_t replicas = graph.groups[home.value].shares(); replicas % within != 0)
      return user_error(
          fmt::format("{} replicas do not make sub-groups of {}", replicas, within), where,
          fmt::format("choose a shard_within that divides {}, or leave it out", replicas));
  return {};
}

/// Into how many shards the copies of a bucket on the group cut it; 1: nothing is sharded.
Result<uint32_t> shards_on(const Group& group, const Sharding& sharding, const std::string& what,
                           const Strategy& strategy) {
  const int64_t copies = group.copies(), ways = group.ways, within = sharding.within;
  if (!sharding.optimizer)
    return uint32_t{1};
  if (within == Sharding::kAll)
    return group.copies();
  const std::string where = strategy.describe(static_cast<size_t>(sharding.directive));
  int64_t shards = within; // as many as a sub-group has copies
  if (group.layout == Layout::Partial || group.layout == Layout::Tokens)
    shards = within * ways;
  if (group.layout == Layout::Experts) { // of which each `ways` replicas have a copy
    if (within > ways && within % ways != 0)
      return user_error(
          fmt::format("sub-groups of {} replicas do not hold all experts of {} alike: "
                      "each {} replicas share them",
                      within, what, ways),
          where, fmt::format("choose a shard_within that {} divides", ways));
    shards = std::max<int64_t>(1, within / ways);
  }
  if (copies % shards != 0)
    return user_error(
        fmt::format("{} is held by {} replicas in all, which do not make sub-groups of "
                    "{}",
                    what, copies, within),
        where, "choose another shard_within, or leave it out");
  return static_cast<uint32_t>(shards);
}

Result<std::vector<Replication>> replications(const Graph& graph,
                                              const std::vector<Homes>& homes_of) {
  std::vector<Replication> result(graph.model->calls.size());
  const Strategy& strategy = *graph.strategy;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* replicate = std::get_if<Replicate>(&strategy.directives[d].body);
    if (!replicate)
      continue;
    if (replicate->bucket_mb < 0)
      return user_error("a bucket cannot have a negative size", strategy.describe(d),
                        "give bucket_size in megabytes, or leave it out");
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, replicate->filter));
    for (CallId call : calls) {
      PIPER_CHECK_OK(check_within(graph, d, *replicate, homes_of[call.value]));
      result[call.value] = {Sharding::of(*replicate, d), replicate->bucket_mb};
    }
  }
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* offload = std::get_if<Offload>(&strategy.directives[d].body);
    if (!offload || !(offload->optimizer || offload->params))
      continue;
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, offload->filter));
    for (CallId call : calls) {
      Sharding& sharding = result[call.value].sharding;
      sharding.offload_optimizer = sharding.offload_optimizer || offload->optimizer;
      if (!offload->params)
        continue;
      sharding.offload_params = true;
      result[call.value].offload = static_cast<int32_t>(d);
    }
  }
  return result;
}

/// The directive that put a call where it is; of one that is in several places, one of them.
std::string placed_by(const Graph& graph, CallId call) {
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      if (node.id.op == Op::Forward && node.id.subject == call.value)
        return graph.strategy->describe(static_cast<size_t>(node.directive));
  return "strategy";
}

/// All devices of the groups, as one: first those of one, then those of the next, so that blocks
/// stay blocks. `user`: a call that runs on one of them.
Result<GroupId> intern_union(Graph& graph, const Homes& homes, CallId user,
                             const std::string& what) {
  if (homes.size() == 1)
    return homes.front();
  const Group& first = graph.groups[homes.front().value];
  Group all{.ways = first.ways, .layout = first.layout, .outside = first.outside};
  for (GroupId id : homes) {
    const Group& group = graph.groups[id.value];
    if (group.layout != first.layout || group.ways != first.ways)
      return user_error(fmt::format("{} would be held {} in blocks of {} by some devices and {} in "
                                    "blocks of {} by others",
                                    what, to_string(first.layout), first.ways,
                                    to_string(group.layout), group.ways),
                        placed_by(graph, user),
                        "shard all calls that share a parameter alike, or none");
    for (DeviceIndex device : group.devices)
      if (std::find(all.devices.begin(), all.devices.end(), device) == all.devices.end())
        all.devices.push_back(device);
  }
  return intern_group(graph, std::move(all));
}

/// Adds buckets, one for each element type among `params`.
Result<void> add_buckets(Graph& graph, const std::string& name, GroupId group,
                         const Sharding& sharding, const std::vector<ParamId>& params) {
  const Group its = graph.groups[group.value];
  PIPER_TRY(const uint32_t shards, shards_on(its, sharding, "bucket " + name, *graph.strategy));
  std::map<DType, std::vector<ParamId>> by_type;
  for (ParamId param : params)
    by_type[graph.model->param(param).type.dtype].push_back(param);
  for (auto& [dtype, list] : by_type) {
    Bucket bucket;
    bucket.name = by_type.size() > 1 ? name + ":" + to_string(dtype) : name;
    bucket.group = group;
    bucket.dtype = dtype;
    // Parameters that are away have windows as sharded ones, also where there is one shard.
    bucket.shards = shards;
    bucket.shard_optimizer = shards > 1 || sharding.offload_params;
    bucket.shard_grads = shards > 1 && sharding.grads;
    bucket.shard_params = (shards > 1 && sharding.params) || sharding.offload_params;
    bucket.offload_optimizer = sharding.offload_optimizer;
    bucket.offload_params = sharding.offload_params;
    auto align = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
    for (ParamId param : list) {
      bucket.params.push_back(param);
      bucket.offsets.push_back(bucket.numel);
      bucket.numel += align(type_on(its, graph.model->param(param)).numel(0), kParamAlignment);
    }
    bucket.numel = align(bucket.numel, its.copies() * kParamAlignment);
    graph.buckets.push_back(std::move(bucket));
  }
  return {};
}

/// Of each parameter, the calls that use it.
using Users = std::vector<std::vector<CallId>>;

Users users_of_params(const ModelSpec& model) {
  Users users(model.params.size());
  for (size_t c = 0; c < model.calls.size(); ++c)
    for (ParamId param : model.calls[c].params)
      users[param.value].push_back(CallId(c));
  return users;
}

std::set<CallId> users_of(const Bucket& bucket, const Users& users) {
  std::set<CallId> calls;
  for (ParamId param : bucket.params)
    calls.insert(users[param.value].begin(), users[param.value].end());
  return calls;
}

Result<void> make_buckets(Graph& graph, const std::vector<Homes>& homes_of) {
  const ModelSpec& model = *graph.model;
  PIPER_TRY(std::vector<Replication> replication, replications(graph, homes_of));

  // Who holds each parameter, and the calls that use it.
  const Users users = users_of_params(model);
  // Where calls on these groups keep a parameter.
  auto homes_for = [&](const Homes& homes, ParamId param) {
    Homes groups;
    for (GroupId group : homes) {
      Group home = graph.groups[group.value];
      home.layout = home_of(home.layout, model.param(param));
      add_once(groups, intern_group(graph, std::move(home)));
    }
    return groups;
  };
  auto holders = [&](ParamId param) {
    Homes groups;
    for (CallId call : users[param.value])
      for (GroupId group : homes_for(homes_of[call.value], param))
        add_once(groups, group);
    return groups;
  };

  // Runs of calls that reduce together: by size, then merged where `fuse` says so.
  struct Run {
    Homes homes;
    std::vector<CallId> calls;
  };
  std::map<Homes, std::vector<CallId>> calls_at;
  for (size_t c = 0; c < homes_of.size(); ++c)
    calls_at[homes_of[c]].push_back(CallId(c));
  std::vector<Run> runs;
  for (const auto& [homes, calls] : calls_at) {
    double bucket_mb = 0;
    for (CallId call : calls)
      bucket_mb = std::max(bucket_mb, replication[call.value].bucket_mb);
    const bool windows = std::any_of(calls.begin(), calls.end(), [&](CallId call) {
      const Sharding& sharding = replication[call.value].sharding;
      return sharding.grads || sharding.params || sharding.offload_params;
    });
    if (bucket_mb == 0)
      bucket_mb = windows ? kSegmentBucketMb : kDefaultBucketMb;
    for (auto& run : cut_buckets(model, calls, bucket_mb))
      runs.push_back({homes, std::move(run)});
  }
  const Strategy& strategy = *graph.strategy;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* fuse = std::get_if<Fuse>(&strategy.directives[d].body);
    const TagMatch* pass = fuse ? find_term(fuse->filter, "PASS") : nullptr;
    if (!pass || pass->indices != std::vector<TagIndex>{std::string("REDUCE")} || fuse->update)
      continue;
    PIPER_TRY(std::vector<CallId> calls, select_calls(graph, d, fuse->filter));
    const std::set<CallId> matched(calls.begin(), calls.end());
    std::map<Homes, Run*> target;
    for (Run& run : runs) {
      if (!std::all_of(run.calls.begin(), run.calls.end(),
                       [&](CallId call) { return matched.contains(call); }))
        continue;
      auto [entry, first] = target.try_emplace(run.homes, &run);
      if (first)
        continue;
      auto& into = entry->second->calls;
      into.insert(into.end(), run.calls.begin(), run.calls.end());
      std::sort(into.begin(), into.end());
      run.calls.clear();
    }
    std::erase_if(runs, [](const Run& run) { return run.calls.empty(); });
  }

  const std::vector<std::string> names = segment_names(model);
  const std::vector<uint32_t> segments = model.segments();
  std::vector<ParamId> tied;
  // Named by segments, or by calls where several groups share a segment.
  struct Planned {
    std::string by_segment, by_call;
    GroupId group;
    Sharding sharding;
    std::vector<ParamId> params;
  };
  const auto span = [](const std::string& first, const std::string& last) {
    return first == last ? first : first + ".." + last;
  };
  std::vector<Planned> planned;
  std::map<std::string, int> named;
  for (const Run& run : runs) {
    std::map<Homes, std::vector<ParamId>> params_at; // cut ones are apart from whole ones
    Sharding sharding{true, true, true, true, true};
    for (CallId call : run.calls) {
      sharding = sharding & replication[call.value].sharding;
      for (ParamId param : model.call(call).params) {
        // A parameter goes where its first user is, unless others hold it too.
        const Homes homes = homes_for(run.homes, param);
        auto& params = params_at[homes];
        if (holders(param) != homes)
          tied.push_back(param);
        else if (users[param.value].front() == call &&
                 std::find(params.begin(), params.end(), param) == params.end())
          params.push_back(param);
      }
    }
    const CallId first = run.calls.front(), last = run.calls.back();
    for (auto& [homes, params] : params_at) {
      if (params.empty())
        continue;
      std::string by_segment = span(names[segments[first.value]], names[segments[last.value]]);
      std::string by_call = span(model.call(first).name, model.call(last).name);
      PIPER_TRY(const GroupId group, intern_union(graph, homes, first, "bucket " + by_segment));
      if (const Layout layout = graph.groups[group.value].layout; layout != Layout::Whole)
        for (std::string* name : {&by_segment, &by_call})
          *name += fmt::format(":{}", to_string(layout));
      Sharding its = sharding;
      if (homes.size() > 1) { // as tied ones, below
        its.grads = its.params = its.offload_params = false;
      } else if (sharding.offload_params && !sharding.params &&
                 graph.groups[group.value].copies() > 1) {
        const int32_t directive = replication[first.value].offload;
        return user_error(
            fmt::format("the parameters of {} are whole on each of {} replicas", by_segment,
                        graph.groups[group.value].copies()),
            strategy.describe(static_cast<size_t>(directive)),
            "give their replicate shard_params, or offload the optimizer's state alone");
      }
      ++named[by_segment];
      planned.push_back({std::move(by_segment), std::move(by_call), group, its, std::move(params)});
    }
  }
  for (const Planned& each : planned)
    PIPER_CHECK_OK(add_buckets(graph, named[each.by_segment] == 1 ? each.by_segment : each.by_call,
                               each.group, each.sharding, each.params));

  // One logical parameter on several groups: a bucket over all who hold it, so that its gradients
  // are summed over them and it is updated alike everywhere.
  std::sort(tied.begin(), tied.end());
  tied.erase(std::unique(tied.begin(), tied.end()), tied.end());
  for (ParamId param : tied) {
    // Its holders use it at different times, so that none can gather it for all.
    Sharding sharding{.optimizer = true, .offload_optimizer = true};
    for (CallId call : users[param.value])
      sharding = sharding & replication[call.value].sharding;
    const std::string& name = model.param(param).name;
    PIPER_TRY(const GroupId group,
              intern_union(graph, holders(param), users[param.value].back(), "parameter " + name));
    PIPER_CHECK_OK(add_buckets(graph, "tied:" + name, group, sharding, {param}));
  }
  return {};
}

/// Marks the buckets whose updates `fuse` fuses into their reductions. Of each bucket, the
/// directive that says so, or -1.
Result<std::vector<int32_t>> fuse_updates(Graph& graph) {
  const Users users = users_of_params(*graph.model);
  std::vector<int32_t> said_by(graph.buckets.size(), -1);
  for (size_t d = 0; d < graph.strategy->directives.size(); ++d) {
    const auto* fuse = std::get_if<Fuse>(&graph.strategy->directives[d].body);
    if (!fuse || !fuse->update)
      continue;
    const std::string where = graph.strategy->describe(d);
    for (const auto& [tag, match] : fuse->filter.terms)
      if (tag == graph.microbatch_tag ||
          (tag == "PASS" && match.indices != std::vector<TagIndex>{std::string("REDUCE")}))
        return user_error(fmt::format("an update is fused into the reduction of its bucket, which "
                                      "has no {} of its own",
                                      tag),
                          where, fmt::format("leave {} out of the filter", tag));
    PIPER_TRY(const std::vector<CallId> calls, select_calls(graph, d, fuse->filter));
    bool any = false;
    for (size_t b = 0; b < graph.buckets.size(); ++b) {
      const std::set<CallId> its = users_of(graph.buckets[b], users);
      if (!std::includes(calls.begin(), calls.end(), its.begin(), its.end()))
        continue;
      graph.buckets[b].fused_update = any = true;
      said_by[b] = static_cast<int32_t>(d);
    }
    if (!any)
      return user_error("no bucket has all of its calls among those that match", where,
                        "match whole segments, or make buckets smaller with bucket_mb");
  }
  return said_by;
}

/// A group of these devices, whatever its layout; added if there is none.
GroupId world_of(std::vector<Group>& groups, std::vector<DeviceIndex> devices) {
  for (size_t g = 0; g < groups.size(); ++g)
    if (groups[g].devices == devices)
      return GroupId(g);
  groups.push_back({.devices = std::move(devices)});
  return GroupId(groups.size() - 1);
}

/// The nodes of one iteration that work on a bucket, and what Commit waits for. `fused_by`: see
/// fuse_updates.
Result<void> add_bucket_nodes(Graph& graph, const std::vector<int32_t>& fused_by) {
  const ModelSpec& model = *graph.model;
  std::vector<std::vector<ValueRef>> made(model.calls.size()); // gradients of a call's parameters
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      for (const ValueRef& ref : node.outputs)
        if (ref.kind == ValueKind::WeightGrad)
          made[ref.subject].push_back(ref);

  std::vector<DeviceIndex> devices;
  for (const Group& group : graph.groups)
    devices.insert(devices.end(), group.devices.begin(), group.devices.end());
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  const GroupId world = world_of(graph.groups, std::move(devices));
  const ValueRef committed{.kind = ValueKind::Committed, .at = world};

  const Users users = users_of_params(model);
  Node commit;
  commit.id = {.op = Op::Commit, .at = world};
  commit.outputs = {committed};
  std::vector<RegionPtr> regions;
  for (size_t b = 0; b < graph.buckets.size(); ++b) {
    const Bucket& bucket = graph.buckets[b];
    const auto subject = static_cast<uint32_t>(b);
    std::vector<ValueRef> grads; // what says that they are there, as far as they are summed
    for (CallId call : users_of(bucket, users)) {
      if (bucket.fused_update && made[call.value].empty())
        return user_error(
            fmt::format("'{}' reads bucket {}, but no gradient reaches it: it may run "
                        "after an update that is fused into the bucket's reduction",
                        model.call(call).name, bucket.name),
            graph.strategy->describe(static_cast<size_t>(fused_by[b])),
            "leave the call's parameters out of the filter");
      grads.insert(grads.end(), made[call.value].begin(), made[call.value].end());
    }

    std::vector<Node> nodes;
    auto reduce = [&](Op op, ValueKind kind) {
      Node node;
      node.id = {.op = op, .subject = subject, .at = bucket.group};
      node.inputs = std::move(grads);
      node.outputs = {{.kind = kind, .subject = subject, .at = bucket.group}};
      grads = node.outputs;
      nodes.push_back(std::move(node));
    };
    const bool across = graph.groups[bucket.group.value].copies() > bucket.shards;
    if (bucket.shards > 1)
      reduce(Op::ReduceScatter, across ? ValueKind::Scattered : ValueKind::Reduced);
    if (across)
      reduce(Op::AllReduce, ValueKind::Reduced);
    commit.inputs.insert(commit.inputs.end(), grads.begin(), grads.end());
    Node update;
    update.id = {.op = Op::Update, .subject = subject, .at = bucket.group};
    update.inputs = bucket.fused_update ? grads : std::vector{committed};
    update.directive = fused_by[b];
    update.outputs = {{.kind = ValueKind::Updated, .subject = subject, .at = bucket.group}};
    nodes.push_back(update);
    if (bucket.shard_optimizer && !bucket.shard_params) {
      Node gather;
      gather.id = {.op = Op::AllGather, .subject = subject, .at = bucket.group};
      gather.inputs = update.outputs;
      nodes.push_back(std::move(gather));
    }
    regions.push_back(std::make_shared<Region>("bucket " + bucket.name, std::move(nodes)));
  }
  // A call that feeds several buckets is named once.
  std::sort(commit.inputs.begin(), commit.inputs.end());
  commit.inputs.erase(std::unique(commit.inputs.begin(), commit.inputs.end()), commit.inputs.end());
  graph.regions.insert(graph.regions.end(), regions.begin(), regions.end());
  graph.regions.push_back(std::make_shared<Region>("commit", std::vector<Node>{std::move(commit)}));
  return {};
}

} // namespace

Result<Graph> assign_buckets(const CompileOptions& options, const Graph& placed) {
  Graph graph = placed;
  PIPER_CHECK_OK(make_buckets(graph, homes_of_calls(placed)));
  PIPER_TRY(const std::vector<int32_t> fused_by, fuse_updates(graph));
  PIPER_CHECK_OK(place_mirrors(graph));
  if (options.kind == PlanKind::Train)
    PIPER_CHECK_OK(add_bucket_nodes(graph, fused_by));
  return graph;
}

} // namespace piper::compiler
