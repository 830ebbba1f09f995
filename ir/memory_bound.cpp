#include "ir/memory_bound.h"

#include "ir/worst_moment.h"

#include <fmt/ranges.h>

#include <map>
#include <utility>

namespace piper::ir {

namespace {

/// Instructions of all devices times devices, beyond which roles stand for their devices.
constexpr size_t kExhaustive = 100'000'000;

/// Adds what buckets and modules take of a device at all times. Gives what they take before the
/// first iteration: arrays are whole until they are cut into shards, and a module's own parameters
/// are there, maybe of two element types, until they are views of them.
int64_t add_state(MemoryBound& bound, const PlanSet& set, const ModelSpec& model, const Plan& plan,
                  const std::vector<StateKind>& kinds) {
  int64_t most = 0;
  for (const Bucket& bucket : set.buckets) {
    if (set.rank_in(bucket.group, bound.device) < 0)
      continue;
    most = std::max(most, bound.peak() + 2 * bucket.numel * size_of(bucket.dtype));
    const StateBytes state = state_of(bucket, kinds);
    bound.params += state.params;
    bound.gradients += state.gradients;
    bound.moments += state.moments;
  }
  std::vector<bool> mirrored(model.params.size());
  for (const Bucket& bucket : set.buckets)
    for (GroupId mirror : bucket.mirrors) {
      if (set.rank_in(mirror, bound.device) < 0)
        continue;
      bound.mirrors += mirror_of(bucket, kinds);
      for (ParamId param : bucket.params)
        mirrored[param.value] = true;
    }
  std::vector<GroupId> called(model.calls.size());
  for (const Instruction& each : plan.instructions) {
    if (each.op == Opcode::Seed)
      bound.constants += plan.slots[each.outputs[0].value].type.bytes(1);
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk)
        called[call.value] = each.self;
  }
  const auto as_made = [](const TensorType& type) {
    return type.bytes(1) + (type.dtype == DType::F32 ? 0 : type.numel(1) * size_of(DType::F32));
  };
  int64_t building = 0;
  for (size_t c = 0; c < called.size(); ++c) {
    if (!called[c])
      continue;
    bound.constants += model.calls[c].memory.buffers;
    // Modules are made whole, then as the piece that is placed; parameters first as f32.
    const Group& group = set.groups[called[c].value];
    int64_t own = 0;
    for (ParamId param : model.calls[c].params) {
      const ModelParam& its = model.param(param);
      own += as_made(its.type);
      if (group.parts() > 1)
        own += as_made(type_on(group, its));
    }
    building = std::max(building, own);
  }
  for (const ModelCall& call : model.calls) { // modules are built once to fill mirrors of them
    int64_t own = 0;
    for (ParamId param : call.params)
      own += as_made(model.param(param).type);
    if (std::any_of(call.params.begin(), call.params.end(),
                    [&](ParamId param) { return mirrored[param.value]; }))
      building = std::max(building, own);
  }
  return std::max(most, bound.peak() + building);
}

/// The three instructions that left most of what is live.
std::vector<std::string> largest(const std::map<uint32_t, int64_t>& left_by, const PlanSet& set,
                                 RoleId role, const ModelSpec& model) {
  std::vector<std::pair<int64_t, uint32_t>> all;
  for (const auto& [instruction, bytes] : left_by)
    all.emplace_back(-bytes, instruction);
  std::sort(all.begin(), all.end());
  std::vector<std::string> names;
  for (const auto& [bytes, instruction] : all)
    if (bytes < 0 && names.size() < 3)
      names.push_back(fmt::format(
          "{} ({} bytes)", set.name(role, set.plans[role.value].instructions[instruction], &model),
          -bytes));
  return names;
}

} // namespace

Result<std::vector<MemoryBound>> bound_memory(const PlanSet& set, const ModelSpec& model,
                                              const std::vector<StateKind>& kinds) {
  PIPER_TRY(const JointPlan joint, verify_transfers(set, model));
  PIPER_TRY(const std::vector<uint32_t> order, verify_progress(joint));
  std::vector<std::vector<Storage>> of_role;
  for (const Plan& plan : set.plans)
    of_role.push_back(storages_of(set, model, plan, Routing::Any));

  const bool exhaustive = order.size() * joint.devices.size() <= kExhaustive;
  std::vector<bool> bounded(set.roles.size());
  std::vector<MemoryBound> bounds;
  for (size_t d = 0; d < joint.devices.size(); ++d) {
    const RoleId role = set.devices.at(joint.devices[d]);
    if (!exhaustive && bounded[role.value])
      continue;
    bounded[role.value] = true;
    MemoryBound bound{.device = joint.devices[d]};
    const int64_t before = add_state(bound, set, model, set.plans[role.value], kinds);
    const std::vector<Storage>& storages = of_role[role.value];
    const WorstMoment worst = worst_moment(joint, order, d, storages);
    bound.instruction = worst.instruction;
    std::map<uint32_t, int64_t> left_by; // bytes by the instruction that made them
    for (uint32_t live : worst.storages) {
      const Storage& storage = storages[live];
      (storage.kind == Storage::Kind::Values  ? bound.values
       : storage.kind == Storage::Kind::Saved ? bound.saved
                                              : bound.working) += storage.bytes;
      left_by[storage.made] += storage.bytes;
    }
    bound.largest = largest(left_by, set, role, model);
    bound.working += std::max<int64_t>(0, before - bound.peak());
    bounds.push_back(bound);
  }
  return bounds;
}

Result<void> verify_memory(const PlanSet& set, const ModelSpec& model,
                           const std::vector<StateKind>& kinds, int64_t cap) {
  PIPER_TRY(const std::vector<MemoryBound> bounds, bound_memory(set, model, kinds));
  for (const MemoryBound& bound : bounds) {
    if (bound.peak() <= cap)
      continue;
    const RoleId role = set.devices.at(bound.device);
    const auto& all = set.plans[role.value].instructions;
    const int64_t state = bound.params + bound.gradients + bound.moments + bound.mirrors;
    std::string message = fmt::format(
        "up to {} bytes may be live, the cap is {}: parameters {}, gradients {}, moments {}, "
        "{}values {}, kept for later passes {}, working {}",
        bound.peak(), cap, bound.params, bound.gradients, bound.moments,
        bound.mirrors ? fmt::format("mirrors {}, ", bound.mirrors) : "", bound.values, bound.saved,
        bound.working);
    if (!bound.largest.empty())
      message += fmt::format("; most was left by {}", fmt::join(bound.largest, ", "));
    Error error{ErrorKind::OutOfMemory, std::move(message), fmt::format("device {}", bound.device),
                state > cap / 2
                    ? "shard the state over replicas (shard_optimizer, shard_grads, shard_params), "
                      "offload it, or spread the model over more devices"
                    : "recompute or offload activations, cut the batch into more microbatches, or "
                      "spread the "
                      "model over more devices"};
    if (!all.empty())
      error.where += ", " + wrong_instruction(set, role, all[bound.instruction], model, "").where;
    return error;
  }
  return {};
}

} // namespace piper::ir
