// What stands beside the plans: groups, roles, devices, buckets.
#include "ir/verify_plan.h"

#include <map>

namespace piper::ir {

namespace {

Result<void> groups(const PlanSet& set) {
  for (size_t g = 0; g < set.groups.size(); ++g) {
    std::vector<DeviceIndex> devices = set.groups[g].devices;
    if (devices.empty())
      return wrong_set(set, fmt::format("group g{} has no devices", g));
    if (const uint32_t ways = set.groups[g].ways; ways < 1 || devices.size() % ways != 0)
      return wrong_set(
          set, fmt::format("group g{} has {} devices in blocks of {}", g, devices.size(), ways));
    if (const Group& group = set.groups[g]; group.outside < 1 || group.ways % group.outside != 0)
      return wrong_set(set, fmt::format("group g{} has blocks of {} around experts shared by {}", g,
                                        group.outside, group.ways));
    std::sort(devices.begin(), devices.end());
    if (auto twice = std::adjacent_find(devices.begin(), devices.end()); twice != devices.end())
      return wrong_set(set, fmt::format("group g{} has device {} twice", g, *twice));
  }
  return {};
}

Result<void> roles(const PlanSet& set) {
  if (set.roles.size() != set.plans.size())
    return wrong_set(set,
                     fmt::format("{} roles have {} plans", set.roles.size(), set.plans.size()));
  for (const Role& role : set.roles)
    for (GroupId group : role.groups)
      if (group.value >= set.groups.size())
        return wrong_set(set, fmt::format("role {} is a member of g{}, which does not exist",
                                          role.name, group.value));
  for (const auto& [device, role] : set.devices)
    if (role.value >= set.roles.size())
      return wrong_set(
          set, fmt::format("device {} has role r{} of {}", device, role.value, set.roles.size()));
  return {};
}

/// Devices of a role are members of its groups, and the reverse; all have a plan.
Result<void> members(const PlanSet& set) {
  std::map<DeviceIndex, std::vector<GroupId>> of_device;
  for (size_t g = 0; g < set.groups.size(); ++g)
    for (DeviceIndex device : set.groups[g].devices) {
      if (!set.devices.contains(device))
        return wrong_set(set, fmt::format("device {} of g{} has no plan", device, g));
      of_device[device].push_back(GroupId(g));
    }
  for (const auto& [device, role] : set.devices) {
    std::vector<GroupId> of_role = set.roles[role.value].groups;
    std::sort(of_role.begin(), of_role.end());
    if (of_role != of_device[device])
      return wrong_set(set, fmt::format("device {} is not in exactly the groups of its role {}",
                                        device, set.roles[role.value].name));
  }
  if (set.world.value >= set.groups.size())
    return wrong_set(set, "there is no world");
  std::vector<DeviceIndex> world = set.groups[set.world.value].devices;
  std::sort(world.begin(), world.end());
  if (!std::equal(world.begin(), world.end(), set.devices.begin(), set.devices.end(),
                  [](DeviceIndex a, const auto& b) { return a == b.first; }))
    return wrong_set(set, "the world is not exactly the devices that have a plan");
  return {};
}

Result<void> bucket_params(const PlanSet& set, const ModelSpec& model, const Bucket& bucket,
                           std::vector<bool>& held) {
  const Group& group = set.groups[bucket.group.value];
  if (bucket.offsets.size() != bucket.params.size())
    return wrong_set(set, fmt::format("bucket {} has {} parameters and {} offsets", bucket.name,
                                      bucket.params.size(), bucket.offsets.size()));
  int64_t end = 0;
  for (size_t i = 0; i < bucket.params.size(); ++i) {
    const ParamId id = bucket.params[i];
    if (id.value >= held.size())
      return wrong_set(set, fmt::format("bucket {} holds parameter {}, which does not exist",
                                        bucket.name, id.value));
    const ModelParam& param = model.param(id);
    if (held[id.value])
      return wrong_set(set, fmt::format("parameter {} is in two buckets", param.name));
    held[id.value] = true;
    if (param.type.dtype != bucket.dtype)
      return wrong_set(set, fmt::format("parameter {} is {}, its bucket {} is {}", param.name,
                                        to_string(param.type.dtype), bucket.name,
                                        to_string(bucket.dtype)));
    if (bucket.offsets[i] < end || bucket.offsets[i] % kParamAlignment != 0)
      return wrong_set(set,
                       fmt::format("parameter {} is at offset {} of bucket {}: it overlaps "
                                   "the one before or is not aligned to {}",
                                   param.name, bucket.offsets[i], bucket.name, kParamAlignment));
    if (group.parts() > 1 && (param.cut < 0 || param.type.dims[param.cut] % group.parts() != 0))
      return wrong_set(set, fmt::format("parameter {} of bucket {} does not make {} parts",
                                        param.name, bucket.name, group.parts()));
    end = bucket.offsets[i] + type_on(group, param).numel(1);
  }
  const int64_t ranks = group.copies();
  if (bucket.numel < end || bucket.numel % (ranks * kParamAlignment) != 0)
    return wrong_set(set, fmt::format("bucket {} has {} elements: its parameters need {}, padded "
                                      "to a multiple of {}",
                                      bucket.name, bucket.numel, end, ranks * kParamAlignment));
  if (!shards_fit(bucket, group))
    return wrong_set(set, fmt::format("bucket {} has {} shards for {} copies", bucket.name,
                                      bucket.shards, ranks));
  return {};
}

/// As many ranks as the bucket's group, each on a device that has no other copy of the same.
Result<void> mirrors(const PlanSet& set, const Bucket& bucket) {
  std::vector<GroupId> all = {bucket.group};
  for (GroupId id : bucket.mirrors) {
    if (id.value >= set.groups.size() ||
        set.groups[id.value].size() != set.groups[bucket.group.value].size())
      return wrong_set(
          set, fmt::format("a mirror of bucket {} is on no group like its own", bucket.name));
    for (GroupId other : all)
      for (size_t rank = 0; rank < set.groups[id.value].size(); ++rank)
        if (set.groups[id.value].devices[rank] == set.groups[other.value].devices[rank])
          return wrong_set(set, fmt::format("device {} keeps two copies of what rank {} of bucket "
                                            "{} owns",
                                            set.groups[id.value].devices[rank], rank, bucket.name));
    all.push_back(id);
  }
  if (!bucket.mirrors.empty() && owners(bucket, set.groups[bucket.group.value]) > 1)
    return wrong_set(set,
                     fmt::format("bucket {} has a mirror of what several ranks own", bucket.name));
  if (!bucket.mirrors.empty() && bucket.fused_update)
    return wrong_set(set, fmt::format("bucket {} has a mirror, but its update waits for no commit",
                                      bucket.name));
  return {};
}

Result<void> buckets(const PlanSet& set, const ModelSpec& model) {
  std::vector<bool> held(model.params.size());
  for (const Bucket& bucket : set.buckets) {
    if (bucket.group.value >= set.groups.size())
      return wrong_set(set, fmt::format("bucket {} is on no group", bucket.name));
    PIPER_CHECK_OK(bucket_params(set, model, bucket, held));
    PIPER_CHECK_OK(mirrors(set, bucket));
  }
  for (size_t p = 0; p < held.size(); ++p)
    if (!held[p])
      return wrong_set(set, fmt::format("parameter {} is in no bucket", model.params[p].name));
  return {};
}

} // namespace

Result<void> verify_tables(const PlanSet& set, const ModelSpec& model) {
  if (set.microbatches < 1 || set.batch % set.microbatches != 0)
    return wrong_set(
        set, fmt::format("{} rows are cut into {} microbatches", set.batch, set.microbatches));
  PIPER_CHECK_OK(groups(set));
  PIPER_CHECK_OK(roles(set));
  PIPER_CHECK_OK(buckets(set, model));
  if (set.kind == PlanKind::Migrate)
    return {}; // its devices are those of two epochs, its groups of one
  return members(set);
}

} // namespace piper::ir
