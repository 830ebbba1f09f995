// What is sent is received: every key once at each end, for one value, and in one order, so that
// transports without tags work too. The members of a group issue its collectives in one order.
#include "ir/verify_plan.h"

#include <deque>
#include <map>
#include <set>
#include <unordered_map>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;
/// Device instructions that are looked at one by one. A larger set is checked on a part of it.
constexpr size_t kExhaustive = 4'000'000;

/// A message of a channel.
struct Key {
  EdgeId edge;
  int32_t microbatch;
  auto operator<=>(const Key&) const = default;
};
struct Channel {
  DeviceIndex from, to;
  auto operator<=>(const Channel&) const = default;
};

class TransferVerifier {
public:
  TransferVerifier(const PlanSet& set, const ModelSpec& model)
      : set_(set), model_(model), joint_{set, model, {}, {}, {}, {}} {
    for (uint32_t g = 0; g < set.groups.size(); ++g)
      for (uint32_t rank = 0; rank < set.groups[g].devices.size(); ++rank)
        rank_.emplace(member(g, set.groups[g].devices[rank]), rank);
  }

  Result<JointPlan> run() {
    PIPER_CHECK_OK(edges());
    PIPER_CHECK_OK(collectives());
    PIPER_CHECK_OK(choose_devices());
    find_channels();
    for (const auto& [channel, ends] : channels_)
      PIPER_CHECK_OK(join(channel, ends));
    return std::move(joint_);
  }

private:
  static uint64_t member(uint32_t group, DeviceIndex device) {
    return uint64_t{group} << 32 | device;
  }
  RoleId role_of(DeviceIndex device) const { return set_.devices.at(device); }
  Error wrong(DeviceIndex device, const Instruction& each, std::string message) const {
    Error error = wrong_instruction(set_, role_of(device), each, model_, std::move(message));
    error.where = fmt::format("device {}, {}", device, error.where);
    return error;
  }
  Error wrong(uint32_t node, std::string message) const {
    return wrong(joint_.devices[joint_.index_of(node)], joint_.instruction(node),
                 std::move(message));
  }

  /// What a Redistribute moves, of any microbatch.
  ValueRef moved(RoleId role, const Instruction& each) const {
    if (each.op != Opcode::Redistribute)
      return {};
    ValueRef value = set_.plans[role.value].slots[each.inputs[0].value].value;
    value.microbatch = kNoMicrobatch;
    return value;
  }

  /// A collective has an edge of its own, so that its keys are those of no transfer or other
  /// collective.
  Result<void> edges() const {
    struct Use {
      RoleId role;
      const Instruction* instruction = nullptr;
    };
    std::vector<Use> uses(set_.edges.size());
    for (uint32_t r = 0; r < set_.plans.size(); ++r)
      for (const Instruction& each : set_.plans[r].instructions) {
        if (!is_transfer(each.op) && !is_collective(each.op))
          continue;
        Use& use = uses[each.edge.value];
        if (!use.instruction)
          use = {RoleId(r), &each};
        const Instruction& other = *use.instruction;
        const bool same = is_transfer(each.op)
                              ? is_transfer(other.op)
                              : each.op == other.op && each.group == other.group &&
                                    each.self == other.self &&
                                    (each.op == Opcode::Commit || each.buckets == other.buckets) &&
                                    moved(RoleId(r), each) == moved(use.role, other);
        if (!same)
          return wrong_instruction(set_, RoleId(r), each, model_,
                                   fmt::format("{} is the edge of {} too",
                                               text(Key{each.edge, kNoMicrobatch}),
                                               set_.name(use.role, other, &model_)));
      }
    return {};
  }

  /// The members of a group issue its collectives in one order, each under a key of its own.
  Result<void> collectives() const {
    struct Entry {
      RoleId role;
      const Instruction* instruction;
    };
    std::map<GroupId, std::vector<Entry>> first; // as the first role has them
    for (size_t r = 0; r < set_.plans.size(); ++r) {
      std::map<GroupId, std::vector<Entry>> own;
      std::set<Key> keys;
      for (const Instruction& each : set_.plans[r].instructions) {
        if (!is_collective(each.op))
          continue;
        own[each.group].push_back({RoleId(r), &each});
        const Key key{each.edge, each.microbatch};
        if (!keys.insert(key).second)
          return wrong_instruction(set_, RoleId(r), each, model_,
                                   fmt::format("{} is the key of an earlier one too", text(key)));
      }
      for (GroupId group : set_.roles[r].groups) {
        auto [entry, is_first] = first.emplace(group, own[group]);
        if (is_first)
          continue;
        const auto &theirs = entry->second, &ours = own[group];
        for (size_t i = 0; i < std::max(theirs.size(), ours.size()); ++i) {
          const bool both = i < theirs.size() && i < ours.size();
          if (both && theirs[i].instruction->edge == ours[i].instruction->edge &&
              theirs[i].instruction->microbatch == ours[i].instruction->microbatch)
            continue;
          const Entry& odd = i < ours.size() ? ours[i] : theirs[i];
          return wrong_instruction(
              set_, odd.role, *odd.instruction, model_,
              fmt::format("the members of g{} don't issue their collectives in one order: "
                          "another one has {} here",
                          group.value,
                          both ? set_.name(theirs[i].role, *theirs[i].instruction, &model_)
                               : std::string("nothing")));
        }
      }
    }
    return {};
  }

  /// The other end of a transfer; none if there is no such device.
  uint32_t peer(DeviceIndex device, const Instruction& each) const {
    if (is_of_state(each.op))
      return set_.devices.contains(each.device) ? each.device : kNone;
    const auto rank = rank_.find(member(each.self.value, device));
    const auto& devices = set_.groups[each.group.value].devices;
    if (rank == rank_.end() || rank->second >= devices.size() ||
        !set_.devices.contains(devices[rank->second]))
      return kNone;
    return devices[rank->second];
  }

  /// All devices where they are few. Otherwise the first of each group and whoever they exchange
  /// messages with, and whoever those do: ranks do the same as rank 0 with peers of their own
  /// rank, so a plan set that breaks a rule breaks it there too.
  Result<void> choose_devices() {
    size_t total = 0;
    for (const auto& [device, role] : set_.devices)
      total += set_.plans[role.value].instructions.size();
    std::set<DeviceIndex> chosen;
    for (const auto& [device, role] : set_.devices)
      if (total <= kExhaustive || set_.kind == PlanKind::Migrate)
        chosen.insert(device);
    for (const Group& group : set_.groups)
      if (set_.devices.contains(group.devices.front()))
        chosen.insert(group.devices.front());
    std::deque<DeviceIndex> queue(chosen.begin(), chosen.end());
    for (; !queue.empty(); queue.pop_front())
      for (const Instruction& each : set_.plans[role_of(queue.front()).value].instructions) {
        if (!is_transfer(each.op))
          continue;
        const DeviceIndex other = peer(queue.front(), each);
        if (other == kNone)
          return wrong(queue.front(), each, "there is no device at the other end");
        if (other == queue.front())
          return wrong(queue.front(), each, "a device sends to itself");
        if (chosen.insert(other).second)
          queue.push_back(other);
      }
    joint_.devices.assign(chosen.begin(), chosen.end());
    return {};
  }

  /// The transfers of a channel at its two ends, in issue order.
  struct Ends {
    std::vector<uint32_t> sent, received; ///< nodes
  };

  void find_channels() {
    uint32_t node = 0;
    for (size_t d = 0; d < joint_.devices.size(); ++d) {
      joint_.first.push_back(node);
      node += static_cast<uint32_t>(joint_.plan(d).instructions.size());
    }
    joint_.first.push_back(node);
    joint_.partner.assign(node, kNone);
    joint_.next_in_channel.assign(node, kNone);
    for (size_t d = 0; d < joint_.devices.size(); ++d) {
      const DeviceIndex device = joint_.devices[d];
      node = joint_.first[d];
      for (const Instruction& each : joint_.plan(d).instructions) {
        if (is_transfer(each.op)) {
          const bool sends = is_sending(each.op);
          const DeviceIndex other = peer(device, each);
          Ends& ends = channels_[sends ? Channel{device, other} : Channel{other, device}];
          auto& list = sends ? ends.sent : ends.received;
          if (!list.empty())
            joint_.next_in_channel[list.back()] = node;
          list.push_back(node);
        }
        ++node;
      }
    }
  }

  Key key(uint32_t node) const {
    const Instruction& each = joint_.instruction(node);
    return {each.edge, each.microbatch};
  }
  std::vector<Key> keys(const std::vector<uint32_t>& nodes) const {
    std::vector<Key> out;
    out.reserve(nodes.size());
    for (uint32_t node : nodes)
      out.push_back(key(node));
    return out;
  }

  Result<void> join(const Channel& channel, const Ends& ends) {
    const std::vector<Key> sent = keys(ends.sent), received = keys(ends.received);
    std::vector<Key> sorted_sent = sent, sorted_received = received;
    std::sort(sorted_sent.begin(), sorted_sent.end());
    std::sort(sorted_received.begin(), sorted_received.end());
    for (const auto* sorted : {&sorted_sent, &sorted_received})
      if (auto twice = std::adjacent_find(sorted->begin(), sorted->end()); twice != sorted->end()) {
        const bool sends = sorted == &sorted_sent;
        const auto& list = sends ? sent : received;
        const auto first = std::find(list.begin(), list.end(), *twice);
        const auto second = std::find(first + 1, list.end(), *twice);
        return wrong(
            (sends ? ends.sent : ends.received)[static_cast<size_t>(second - list.begin())],
            fmt::format("{} twice: {}", sends ? "sent" : "received", text(*twice)));
      }
    for (size_t i = 0; i < sent.size(); ++i)
      if (!std::binary_search(sorted_received.begin(), sorted_received.end(), sent[i]))
        return wrong(ends.sent[i],
                     fmt::format("device {} never receives {}", channel.to, text(sent[i])));
    for (size_t i = 0; i < received.size(); ++i)
      if (!std::binary_search(sorted_sent.begin(), sorted_sent.end(), received[i]))
        return wrong(ends.received[i],
                     fmt::format("device {} never sends {}", channel.from, text(received[i])));
    for (size_t i = 0; i < received.size(); ++i) {
      if (received[i] != sent[i])
        return wrong(ends.received[i],
                     fmt::format("it receives {} where device {} sends {}: a channel has one order",
                                 text(received[i]), channel.from, text(sent[i])));
      joint_.partner[ends.sent[i]] = ends.received[i];
      joint_.partner[ends.received[i]] = ends.sent[i];
      PIPER_CHECK_OK(check_content(channel, ends.sent[i], ends.received[i]));
    }
    return {};
  }

  /// Both ends mean the same value, of the same rows, or the same range of state.
  Result<void> check_content(const Channel& channel, uint32_t send, uint32_t recv) const {
    const Instruction &sends = joint_.instruction(send), &receives = joint_.instruction(recv);
    if (is_of_state(sends.op)) {
      if (sends.source != receives.source || sends.target != receives.target)
        return wrong(recv,
                     fmt::format("device {} sends another range under this key", channel.from));
      return {};
    }
    if (sends.op == Opcode::SendMirror) {
      if (sends.buckets != receives.buckets)
        return wrong(recv, fmt::format("device {} sends it {}", channel.from,
                                       set_.name(role_of(channel.from), sends, &model_)));
      return {};
    }
    const Slot& from = set_.plans[role_of(channel.from).value].slots[sends.inputs[0].value];
    const Slot& to = set_.plans[role_of(channel.to).value].slots[receives.outputs[0].value];
    ValueRef sent = from.value;
    sent.at = to.value.at;
    if (sent != to.value || replicas(set_, sends.self) != replicas(set_, receives.self))
      return wrong(recv, fmt::format("device {} sends it {}", channel.from,
                                     set_.name(role_of(channel.from), sends, &model_)));
    const Group &here = set_.groups[sends.self.value], &there = set_.groups[receives.self.value];
    if (here.layout != there.layout || here.ways != there.ways)
      return wrong(recv, fmt::format("device {} sends it {} in blocks of {}, here it is {} in "
                                     "blocks of {}",
                                     channel.from, to_string(here.layout), here.ways,
                                     to_string(there.layout), there.ways));
    return {};
  }

  std::string text(const Key& key) const {
    std::string out = fmt::format("edge {}", key.edge.value);
    if (key.edge.value < set_.edges.size())
      out += fmt::format(" ({})", set_.edges[key.edge.value]);
    if (key.microbatch >= 0)
      out += fmt::format(" @{}", key.microbatch);
    return out;
  }

  const PlanSet& set_;
  const ModelSpec& model_;
  std::unordered_map<uint64_t, uint32_t> rank_; ///< of each member of each group
  std::map<Channel, Ends> channels_;
  JointPlan joint_;
};

} // namespace

Result<JointPlan> verify_transfers(const PlanSet& set, const ModelSpec& model) {
  return TransferVerifier(set, model).run();
}

} // namespace piper::ir
