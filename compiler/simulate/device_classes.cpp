#include "compiler/simulate/device_classes.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace piper::compiler {

using namespace ir;

namespace {

/// Numbers equal keys alike, in the order in which they come.
template <class Key> class Numbering {
public:
  uint32_t of(Key key) {
    return numbers_.try_emplace(std::move(key), static_cast<uint32_t>(numbers_.size()))
        .first->second;
  }
  size_t size() const { return numbers_.size(); }

private:
  std::map<Key, uint32_t> numbers_;
};

bool is_transfer(Opcode op) {
  return op == Opcode::Send || op == Opcode::Recv || op == Opcode::SendState ||
         op == Opcode::RecvState || op == Opcode::SendMirror || op == Opcode::RecvMirror;
}

/// The transfers and collectives of a role, each kind once.
struct RoleTraffic {
  std::vector<const Instruction*> transfers;   ///< one for each pair of groups (or peer device)
  std::vector<const Instruction*> collectives; ///< one for each way in which links are used
};

using Key = std::vector<uint64_t>;

/// Its group and stride, and the classes of its members.
template <class ClassOf> Key team_key(const PlanSet& plans, const Team& team, ClassOf class_of) {
  Key key;
  for (DeviceIndex device : plans.members(team))
    key.push_back(class_of(device));
  std::sort(key.begin(), key.end());
  key.insert(key.end(), {team.group.value, team.stride});
  return key;
}

class Refinement {
public:
  Refinement(const PlanSet& plans, const Cluster& cluster, const Ranks& ranks,
             CollectivePlans& collectives)
      : plans_(plans), cluster_(cluster), ranks_(ranks), collectives_(collectives) {
    for (const auto& [device, role] : plans.devices) {
      devices_.push_back(device);
      roles_.push_back(role);
      index_[device] = static_cast<uint32_t>(index_.size());
    }
    for (const Plan& plan : plans.plans)
      traffic_.push_back(traffic_of(plan));
  }

  std::vector<uint32_t> run() {
    std::vector<uint32_t> classes = start();
    for (size_t count = 0;;) {
      Numbering<Key> numbers;
      const std::vector<Key> units = unit_keys(classes);
      const std::map<Team, uint32_t> teams = team_numbers(classes);
      std::vector<uint32_t> next(classes.size());
      for (uint32_t d = 0; d < classes.size(); ++d) {
        Key key = {classes[d]};
        const RoleTraffic& traffic = traffic_[roles_[d].value];
        for (const Instruction* transfer : traffic.transfers)
          key.push_back(classes[index_.at(ranks_.peer(devices_[d], *transfer))]);
        for (const Instruction* collective : traffic.collectives)
          key.push_back(teams.at(team(*collective, d)));
        key.insert(key.end(), units[d].begin(), units[d].end());
        next[d] = numbers.of(std::move(key));
      }
      classes = std::move(next);
      if (numbers.size() == count)
        return classes;
      count = numbers.size();
    }
  }

private:
  RoleTraffic traffic_of(const Plan& plan) {
    RoleTraffic traffic;
    std::set<std::tuple<GroupId, GroupId, DeviceIndex>> peers;
    std::set<const Collective*> plans;
    for (const Instruction& each : plan.instructions) {
      if (is_transfer(each.op) && peers.emplace(each.self, each.group, each.device).second)
        traffic.transfers.push_back(&each);
      if (!is_collective(each.op))
        continue;
      // Teams that are cut alike use links alike, but for the levels, which `start` looks at.
      const auto kind = collective_kind(plans_, each);
      const Team first = plans_.team_of(each, 0);
      const double bytes = collective_bytes(plans_, plan, each);
      if (kind && plans.insert(&collectives_.of(*kind, first, bytes)).second)
        traffic.collectives.push_back(&each);
    }
    return traffic;
  }

  Team team(const Instruction& each, uint32_t device) const {
    return plans_.team_of(each, static_cast<int>(ranks_.of(each.group, devices_[device])));
  }
  const Collective& collective(const Instruction& each, uint32_t device) {
    const Plan& plan = plans_.plans[roles_[device].value];
    return collectives_.of(*collective_kind(plans_, each), team(each, device),
                           collective_bytes(plans_, plan, each));
  }

  /// What does not depend on the classes of others: role, speed, and the links that are used.
  std::vector<uint32_t> start() {
    Numbering<Key> numbers;
    Numbering<double> reals;
    std::vector<uint32_t> classes;
    for (uint32_t d = 0; d < devices_.size(); ++d) {
      const RoleTraffic& traffic = traffic_[roles_[d].value];
      Key key = {roles_[d].value, reals.of(cluster_.speed_of(devices_[d]))};
      for (const Instruction* each : traffic.transfers)
        key.push_back(cluster_.level_between(devices_[d], ranks_.peer(devices_[d], *each)));
      for (const Instruction* each : traffic.collectives) {
        const size_t rank =
            team(*each, d).place_of(static_cast<int>(ranks_.of(each->group, devices_[d])));
        for (const Phase& phase : collective(*each, d).phases) {
          key.push_back(phase.members[rank].size());
          for (const PortUse& use : phase.members[rank])
            key.insert(key.end(), {use.level, reals.of(use.out), reals.of(use.in)});
        }
      }
      classes.push_back(numbers.of(std::move(key)));
    }
    return classes;
  }

  /// The same number for teams of one group with as many members of each class.
  std::map<Team, uint32_t> team_numbers(const std::vector<uint32_t>& classes) const {
    Numbering<Key> numbers;
    std::map<Team, uint32_t> of_team;
    for (uint32_t d = 0; d < devices_.size(); ++d)
      for (const Instruction* each : traffic_[roles_[d].value].collectives) {
        const auto [entry, fresh] = of_team.try_emplace(team(*each, d));
        if (fresh)
          entry->second = numbers.of(team_key(plans_, entry->first, [&](DeviceIndex device) {
            return classes[index_.at(device)];
          }));
      }
    return of_team;
  }

  /// Of each device: what its units hold, where a unit shares something.
  std::vector<Key> unit_keys(const std::vector<uint32_t>& classes) const {
    std::vector<Key> keys(classes.size());
    for (size_t l = 0; l < cluster_.levels.size(); ++l) {
      if (cluster_.levels[l].uplink == 0 && cluster_.levels[l].cores == 0)
        continue;
      std::map<uint32_t, Key> units;
      for (uint32_t d = 0; d < classes.size(); ++d)
        units[cluster_.unit(l, devices_[d])].push_back(classes[d]);
      Numbering<Key> numbers;
      std::map<uint32_t, uint32_t> number;
      for (auto& [unit, members] : units) {
        std::sort(members.begin(), members.end());
        number[unit] = numbers.of(members);
      }
      for (uint32_t d = 0; d < classes.size(); ++d)
        keys[d].push_back(number.at(cluster_.unit(l, devices_[d])));
    }
    return keys;
  }

  const PlanSet& plans_;
  const Cluster& cluster_;
  const Ranks& ranks_;
  CollectivePlans& collectives_;
  std::vector<DeviceIndex> devices_; ///< ascending; what follows is in their order
  std::vector<RoleId> roles_;
  std::unordered_map<DeviceIndex, uint32_t> index_;
  std::vector<RoleTraffic> traffic_; ///< by role
};

/// Numbers the units that the representatives are in, and counts who shares them.
void count_units(const PlanSet& plans, const Cluster& cluster, DeviceClasses& classes) {
  const size_t count = classes.representative.size();
  for (size_t l = 0; l < cluster.levels.size(); ++l) {
    std::map<uint32_t, Key> units; // the classes of each unit's devices
    for (const auto& [device, role] : plans.devices)
      units[cluster.unit(l, device)].push_back(classes.of.at(device));
    Numbering<Key> numbers;
    std::vector<uint32_t>&unit = classes.unit.emplace_back(count),
    &in_unit = classes.in_unit.emplace_back(count);
    for (auto& [index, members] : units)
      std::sort(members.begin(), members.end());
    for (uint32_t c = 0; c < count; ++c) {
      const Key& members = units.at(cluster.unit(l, classes.representative[c]));
      const auto [first, last] = std::equal_range(members.begin(), members.end(), uint64_t{c});
      in_unit[c] = static_cast<uint32_t>(last - first);
      unit[c] = numbers.of(members);
    }
  }
}

/// Those that representatives are in.
void number_teams(const PlanSet& plans, const Ranks& ranks, DeviceClasses& classes) {
  Numbering<Key> numbers;
  for (const DeviceIndex device : classes.representative)
    for (const Instruction& each : plans.plans[plans.devices.at(device).value].instructions) {
      if (!is_collective(each.op))
        continue;
      const Team team = plans.team_of(each, static_cast<int>(ranks.of(each.group, device)));
      const auto [entry, fresh] = classes.team.try_emplace(team);
      if (!fresh)
        continue;
      Key key = team_key(plans, team, [&](DeviceIndex member) { return classes.of.at(member); });
      DeviceClasses::TeamClass& its = entry->second;
      its.members.assign(key.begin(), key.end() - 2);
      its.members.erase(std::unique(its.members.begin(), its.members.end()), its.members.end());
      its.number = numbers.of(std::move(key));
    }
}

} // namespace

bool is_collective(Opcode op) {
  return op == Opcode::AllReduce || op == Opcode::ReduceScatter || op == Opcode::AllGather ||
         op == Opcode::Gather || op == Opcode::Redistribute || op == Opcode::Commit;
}

std::optional<CollectiveKind> collective_kind(const PlanSet& plans,
                                              const Instruction& instruction) {
  switch (instruction.op) {
  case Opcode::AllGather:
  case Opcode::Gather:
    return CollectiveKind::AllGather;
  case Opcode::ReduceScatter:
    return CollectiveKind::ReduceScatter;
  case Opcode::Redistribute:
    break;
  default:
    return CollectiveKind::AllReduce;
  }
  switch (
      *move_between(plans.groups[instruction.group.value], plans.groups[instruction.self.value])) {
  case Move::AllReduce:
    return CollectiveKind::AllReduce;
  case Move::ReduceScatter:
    return CollectiveKind::ReduceScatter;
  case Move::AllGather:
    return CollectiveKind::AllGather;
  case Move::AllToAll:
    return CollectiveKind::AllToAll;
  case Move::Slice:
    break;
  }
  return std::nullopt;
}

double collective_bytes(const PlanSet& plans, const Plan& plan, const Instruction& instruction) {
  if (instruction.op == Opcode::Commit)
    return 8;
  if (instruction.op == Opcode::AllReduce) // of a shard
    return bucket_bytes(plans, instruction) / plans.buckets[instruction.buckets.at(0).value].shards;
  if (instruction.op != Opcode::Redistribute)
    return bucket_bytes(plans, instruction);
  const auto bytes = [&](SlotId id) {
    const Slot& slot = plan.slots[id.value];
    return static_cast<double>(slot.type.bytes(plans.rows(slot.value.at)));
  };
  const double arrives = bytes(instruction.outputs.at(0));
  if (collective_kind(plans, instruction) == CollectiveKind::AllToAll)
    return arrives;
  return std::max(bytes(instruction.inputs.at(0)), arrives); // the larger end has the whole array
}

double bucket_bytes(const PlanSet& plans, const Instruction& instruction) {
  double bytes = 0;
  for (BucketId id : instruction.buckets) {
    const Bucket& bucket = plans.buckets[id.value];
    bytes += static_cast<double>(bucket.numel * size_of(bucket.dtype));
  }
  return bytes;
}

const Collective& CollectivePlans::of(CollectiveKind kind, const Team& team, double bytes) {
  Algorithm algorithm = algorithm_;
  if (algorithm ==
      Algorithm::Auto) { // the choice depends on the size, what it costs a byte doesn't
    auto [entry, added] = chosen_.try_emplace({kind, team, bytes});
    if (added)
      entry->second =
          plan_collective(cluster_, kind, algorithm, plans_.members(team), bytes, add_).algorithm;
    algorithm = entry->second;
  }
  auto [entry, added] = planned_.try_emplace({kind, team, algorithm});
  if (added)
    entry->second = plan_collective(cluster_, kind, algorithm, plans_.members(team));
  return entry->second;
}

Ranks::Ranks(const PlanSet& plans) : plans_(plans) {
  for (uint32_t g = 0; g < plans.groups.size(); ++g)
    for (uint32_t rank = 0; rank < plans.groups[g].devices.size(); ++rank)
      ranks_.emplace(uint64_t{g} << 32 | plans.groups[g].devices[rank], rank);
}

uint32_t Ranks::of(GroupId group, DeviceIndex device) const {
  return ranks_.at(uint64_t{group.value} << 32 | device);
}

DeviceIndex Ranks::peer(DeviceIndex device, const Instruction& transfer) const {
  if (transfer.op == Opcode::SendState || transfer.op == Opcode::RecvState)
    return transfer.device;
  return plans_.groups[transfer.group.value].devices[of(transfer.self, device)];
}

DeviceClasses classify_devices(const PlanSet& plans, const Cluster& cluster, const Ranks& ranks,
                               CollectivePlans& collectives, bool all) {
  std::vector<uint32_t> numbers(plans.devices.size());
  for (uint32_t d = 0; d < numbers.size(); ++d)
    numbers[d] = d;
  if (!all)
    numbers = Refinement(plans, cluster, ranks, collectives).run();
  DeviceClasses classes;
  uint32_t at = 0;
  for (const auto& [device, role] : plans.devices) {
    const uint32_t number = numbers[at++]; // classes are numbered by their first device
    if (number == classes.representative.size()) {
      classes.representative.push_back(device);
      classes.size.push_back(0);
    }
    ++classes.size[number];
    classes.of[device] = number;
  }
  count_units(plans, cluster, classes);
  number_teams(plans, ranks, classes);
  return classes;
}

} // namespace piper::compiler
