#include "ir/plan.h"

#include "ir/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace piper::ir {

namespace {
constexpr std::array kKinds = {"train", "eval", "migrate"};
constexpr std::array kStates = {"param", "grad", "moment1", "moment2", "step"};
constexpr std::array kOpcodes = {"copy-state", "send-state", "recv-state"};
} // namespace

const char* to_string(PlanKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}
const char* to_string(StateKind kind) {
  return kStates[static_cast<size_t>(kind)];
}

const char* to_string(Opcode opcode) {
  if (is_node(opcode))
    return to_string(static_cast<Op>(opcode));
  return kOpcodes[static_cast<size_t>(opcode) - static_cast<size_t>(Opcode::CopyState)];
}
static_assert(static_cast<int>(Opcode::UpdateMirror) == static_cast<int>(Op::UpdateMirror) &&
              static_cast<int>(Opcode::Input) == static_cast<int>(Op::Input));

namespace {
template <class Kind> std::optional<Kind> find_kind(const auto& names, std::string_view text) {
  for (size_t i = 0; i < names.size(); ++i)
    if (text == names[i])
      return static_cast<Kind>(i);
  return std::nullopt;
}
} // namespace

std::optional<PlanKind> parse_plan_kind(std::string_view text) {
  return find_kind<PlanKind>(kKinds, text);
}
std::optional<StateKind> parse_state_kind(std::string_view text) {
  return find_kind<StateKind>(kStates, text);
}
std::optional<Opcode> parse_opcode(std::string_view text) {
  if (auto op = parse_op(text))
    return static_cast<Opcode>(*op);
  for (size_t i = 0; i < kOpcodes.size(); ++i)
    if (text == kOpcodes[i])
      return static_cast<Opcode>(static_cast<size_t>(Opcode::CopyState) + i);
  return std::nullopt;
}

RoleId PlanSet::role_of(DeviceIndex device) const {
  auto found = devices.find(device);
  return found == devices.end() ? RoleId{} : found->second;
}

int PlanSet::rank_in(GroupId group, DeviceIndex device) const {
  const auto& members = groups[group.value].devices;
  auto found = std::find(members.begin(), members.end(), device);
  return found == members.end() ? -1 : static_cast<int>(found - members.begin());
}

std::vector<std::vector<DeviceIndex>> PlanSet::loss_order() const {
  std::vector<std::vector<DeviceIndex>> order(microbatches);
  for (const Plan& plan : plans)
    for (const Instruction& i : plan.instructions)
      if (i.op == Opcode::Loss)
        order[std::max(0, i.microbatch)] = groups[i.self.value].devices;
  return order;
}

namespace {
/// The team with the rank among those that `stride` and `count` cut a group into.
Team team_with(GroupId group, int rank, uint32_t stride, uint32_t count) {
  Team team{group, 0, stride, count};
  team.first = static_cast<uint32_t>(rank) - team.place_of(rank) * stride;
  return team;
}
} // namespace

Team PlanSet::team_of(const Instruction& collective, int rank) const {
  const GroupId id = collective.group;
  const Group& group = groups[id.value];
  if (collective.op == Opcode::Commit)
    return team_with(id, rank, 1, static_cast<uint32_t>(group.size()));
  if (collective.op == Opcode::Redistribute) {
    // An all-to-all happens in the blocks of the experts' group, the others in those of both.
    const uint32_t ways = std::max(group.ways, groups[collective.self.value].ways);
    return team_with(id, rank, 1, ways);
  }
  const Bucket& bucket = buckets[collective.buckets.front().value];
  if (collective.op != Opcode::AllReduce)
    return sub_group(bucket, rank);
  return team_with(id, rank, group.copy_stride() * bucket.shards, group.copies() / bucket.shards);
}

Team PlanSet::sub_group(const Bucket& bucket, int rank) const {
  return team_with(bucket.group, rank, groups[bucket.group.value].copy_stride(), bucket.shards);
}

std::vector<DeviceIndex> PlanSet::members(const Team& team) const {
  const Group& group = groups[team.group.value];
  std::vector<DeviceIndex> devices;
  for (uint32_t i = 0; i < team.count; ++i)
    devices.push_back(group.devices[team.first + i * team.stride]);
  return devices;
}

int64_t PlanSet::rows(GroupId group) const {
  return batch / microbatches / groups[group.value].shares();
}

int64_t PlanSet::first_row(GroupId group, int rank, int32_t microbatch) const {
  const int64_t before = microbatch > 0 ? microbatch * (batch / microbatches) : 0;
  return before + groups[group.value].share(rank) * rows(group);
}

std::string PlanSet::name(RoleId role, const Instruction& instruction,
                          const ModelSpec* model) const {
  const text::Names names{model, &buckets};
  std::string out = to_string(instruction.op);
  auto append_values = [&](const std::vector<SlotId>& slots) {
    const Plan& plan = plans[role.value];
    for (size_t i = 0; i < slots.size(); ++i) {
      out += i ? ", " : " ";
      if (slots[i].value < plan.slots.size()) {
        const ValueRef& ref = plan.slots[slots[i].value].value;
        text::append_subject(out, names, ref.kind, ref.subject, ref.part);
      }
    }
  };
  auto append_state = [&](const StateRange& range) {
    const std::string mirror = range.mirror ? fmt::format("mirror {} of ", range.mirror) : "";
    fmt::format_to(std::back_inserter(out), " {} of {}bucket {} [{}, {})", to_string(range.kind),
                   mirror, range.bucket.value, range.begin, range.begin + range.count);
  };
  switch (instruction.op) {
  case Opcode::Forward:
  case Opcode::Recompute:
  case Opcode::Backward:
  case Opcode::BackwardInput:
  case Opcode::BackwardWeight:
    // One call, or the first and the last of a fused run.
    if (!instruction.chunks.empty() && !instruction.chunks.front().empty() &&
        !instruction.chunks.back().empty()) {
      const CallId first = instruction.chunks.front().front();
      const CallId last = instruction.chunks.back().back();
      out += ' ';
      names.append_call(out, first.value);
      if (last != first) {
        out += "..";
        names.append_call(out, last.value);
      }
    }
    break;
  case Opcode::Send:
  case Opcode::Loss:
  case Opcode::Offload:
    append_values(instruction.inputs);
    break;
  case Opcode::Input:
  case Opcode::Seed:
  case Opcode::Add:
  case Opcode::Recv:
  case Opcode::Redistribute:
  case Opcode::Fetch:
    append_values(instruction.outputs);
    break;
  case Opcode::Gather:
  case Opcode::Release:
  case Opcode::ZeroGrads:
  case Opcode::AllReduce:
  case Opcode::ReduceScatter:
  case Opcode::Update:
  case Opcode::AllGather:
  case Opcode::SendMirror:
  case Opcode::RecvMirror:
  case Opcode::UpdateMirror:
    for (BucketId bucket : instruction.buckets) {
      out += ' ';
      text::append_name(out, bucket.value < buckets.size() ? buckets[bucket.value].name : "?");
    }
    break;
  case Opcode::Commit:
    break;
  case Opcode::CopyState:
  case Opcode::SendState:
    append_state(instruction.source);
    break;
  case Opcode::RecvState:
    append_state(instruction.target);
    break;
  }
  if (instruction.microbatch >= 0) {
    out += ' ';
    text::append_microbatch(out, instruction.microbatch);
  }
  auto layout = [&](GroupId group) {
    return group.value < groups.size() ? to_string(groups[group.value].layout) : "?";
  };
  if (instruction.op == Opcode::Redistribute)
    fmt::format_to(std::back_inserter(out), " from {} to {}", layout(instruction.group),
                   layout(instruction.self));
  const bool sends = instruction.op == Opcode::Send || instruction.op == Opcode::SendMirror;
  if (sends || instruction.op == Opcode::Recv || instruction.op == Opcode::RecvMirror) {
    out += sends ? " to " : " from ";
    text::append_group(out, instruction.group);
  } else if (instruction.op == Opcode::SendState || instruction.op == Opcode::RecvState) {
    fmt::format_to(std::back_inserter(out), " {} device {}",
                   instruction.op == Opcode::SendState ? "to" : "from", instruction.device);
  }
  return out;
}

} // namespace piper::ir
