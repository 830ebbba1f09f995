// Internal to ir/: the rules of plan sets, each in a file of its name. verify_plan.cpp calls them
// in the order below; a rule may rely on those before it.
#pragma once

#include "ir/plan.h"
#include "ir/stream_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace piper::ir {

/// What the rules ask of the model, worked out once, and not by the compiler's own means.
struct ModelFacts {
  ModelFacts(const PlanSet& set, const ModelSpec& model);
  const ModelSpec& model;
  std::vector<bool> backward; ///< of each call: the gradient of the loss reaches it
  /// Of each value: the calls whose backwards add up to its gradient, ascending. Empty for the
  /// loss, whose gradient is the seed, and for what has no gradient.
  std::vector<std::vector<CallId>> readers;
  std::vector<BucketId> bucket; ///< of each parameter; none in a migration
};

/// A role's plan and how errors speak of it.
struct RoleView {
  RoleView(const PlanSet& set, RoleId id, const ModelFacts& facts)
      : set(set), id(id), role(set.roles[id.value]), plan(set.plans[id.value]), facts(facts) {}
  const PlanSet& set;
  RoleId id;
  const Role& role;
  const Plan& plan;
  const ModelFacts& facts;

  /// About an instruction: names it, its role and its directive.
  Error wrong(const Instruction& at, std::string message) const;
  /// About the whole plan.
  Error wrong(std::string message) const;
  std::string name(uint32_t instruction) const {
    return set.name(id, plan.instructions[instruction], &facts.model);
  }
  std::string value_name(const ValueRef& ref) const; ///< "d.attn3 @2 on g0"
  std::string slot_name(SlotId slot) const;          ///< "slot s3 (d.attn3 @2 on g0)"
  bool is_member(GroupId group) const {
    return std::find(role.groups.begin(), role.groups.end(), group) != role.groups.end();
  }
};

/// The plans of the devices, joined where these communicate. A node is an instruction of a device;
/// the nodes of device `devices[d]` are first[d] … first[d + 1] - 1, in issue order.
struct JointPlan {
  const PlanSet& set;
  const ModelSpec& model;
  std::vector<DeviceIndex> devices; ///< ascending; see verify_transfers where not all are here
  std::vector<uint32_t> first;
  std::vector<uint32_t> partner;         ///< of a transfer, the other end; else Id::kNone
  std::vector<uint32_t> next_in_channel; ///< the device's next transfer with the same peer and
                                         ///< direction, else Id::kNone

  size_t index_of(uint32_t node) const { ///< into `devices`
    return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), node) - first.begin() -
                               1);
  }
  const Plan& plan(size_t device) const { return set.plans[set.devices.at(devices[device]).value]; }
  const Instruction& instruction(uint32_t node) const {
    const size_t device = index_of(node);
    return plan(device).instructions[node - first[device]];
  }
};

/// Groups, roles, devices and buckets agree with each other and with the model.
Result<void> verify_tables(const PlanSet& set, const ModelSpec& model);
/// Whatever an instruction names exists, and it has what its opcode needs; events are recorded
/// once, and before they are waited for.
Result<void> verify_names(const RoleView& view);
/// Slots are written once, before they are read, freed once, after they are read, and not live at
/// the end.
Result<void> verify_slots(const RoleView& view, const StreamOrder& order);
/// Every slot holds what its name says, given that those that its writer reads do.
Result<void> verify_values(const RoleView& view);
/// Every microbatch of every call goes forward and backward once on each device of one group, and
/// both agree on their chunks.
Result<void> verify_calls(const std::vector<RoleView>& roles);
/// The gradient of every value is complete where it is used, and scaled once.
Result<void> verify_gradients(const std::vector<RoleView>& roles);
/// What is done to a bucket's arrays is done once, in order, and by one stream at a time.
Result<void> verify_state(const RoleView& view, const StreamOrder& order);
/// What needs a sharded array of a bucket whole runs while it is.
Result<void> verify_windows(const RoleView& view, const StreamOrder& order);
/// A migration fills every array that it moves, once.
Result<void> verify_migration(const PlanSet& set, const ModelSpec& model);
/// What is sent is received: under one key and one name, and in one order.
Result<JointPlan> verify_transfers(const PlanSet& set, const ModelSpec& model);
/// All instructions end, also where sends block and a channel carries one message at a time. Gives
/// an order of all nodes in which they can end; a send directly before its receive, the members of
/// a collective side by side.
Result<std::vector<uint32_t>> verify_progress(const JointPlan& joint);

/// Error `message` about an instruction of a role.
inline Error wrong_instruction(const PlanSet& set, RoleId role, const Instruction& instruction,
                               const ModelSpec& model, std::string message) {
  std::string where =
      fmt::format("role {}, {}", set.roles[role.value].name, set.name(role, instruction, &model));
  if (instruction.directive >= 0 &&
      static_cast<size_t>(instruction.directive) < set.directives.size())
    where += ", " + set.directives[static_cast<size_t>(instruction.directive)];
  return internal_error(std::move(message), std::move(where));
}

inline Error wrong_set(const PlanSet& set, std::string message) {
  return internal_error(std::move(message),
                        fmt::format("{} plans of epoch {}", to_string(set.kind), set.epoch));
}

/// Into how many shares the devices of a group cut the rows of a microbatch.
inline int64_t replicas(const PlanSet& set, GroupId group) {
  return set.groups[group.value].shares();
}

inline bool is_collective(Opcode op) {
  return op == Opcode::AllReduce || op == Opcode::ReduceScatter || op == Opcode::AllGather ||
         op == Opcode::Gather || op == Opcode::Redistribute || op == Opcode::Commit;
}
inline bool is_of_state(Opcode op) {
  return op == Opcode::CopyState || op == Opcode::SendState || op == Opcode::RecvState;
}
inline bool is_transfer(Opcode op) {
  return op == Opcode::Send || op == Opcode::Recv || op == Opcode::SendState ||
         op == Opcode::RecvState || op == Opcode::SendMirror || op == Opcode::RecvMirror;
}
inline bool is_sending(Opcode op) {
  return op == Opcode::Send || op == Opcode::SendState || op == Opcode::SendMirror;
}
/// Which of the bucket's mirrors the group is; as many as it has if none.
inline size_t mirror_on(const Bucket& bucket, GroupId group) {
  return static_cast<size_t>(std::find(bucket.mirrors.begin(), bucket.mirrors.end(), group) -
                             bucket.mirrors.begin());
}

} // namespace piper::ir
