// The rules of plan sets that need all devices: what is sent is received, in one order, and under
// blocking sends and collectives everything ends.
#include "ir/hash.h"
#include "ir/verify_plan.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;
/// Device instructions that are simulated one by one. A larger set is checked on a part of it.
constexpr size_t kExhaustive = 4'000'000;

/// A message of a channel.
struct Key {
  uint32_t edge;
  int32_t microbatch;
  auto operator<=>(const Key&) const = default;
};
struct Channel {
  DeviceIndex from, to;
  auto operator<=>(const Channel&) const = default;
};
struct Message {
  Channel channel;
  Key key;
  bool operator==(const Message&) const = default;
};
struct MessageHash {
  size_t operator()(const Message& m) const noexcept {
    return mix(mix(0, uint64_t{m.channel.from} << 32 | m.channel.to),
               uint64_t{m.key.edge} << 32 | static_cast<uint32_t>(m.key.microbatch));
  }
};

class TransferVerifier {
public:
  TransferVerifier(const PlanSet& set, const ModelSpec& model) : set_(set), model_(model) {
    for (uint32_t g = 0; g < set.groups.size(); ++g)
      for (uint32_t rank = 0; rank < set.groups[g].devices.size(); ++rank)
        rank_.emplace(member(g, set.groups[g].devices[rank]), rank);
  }

  Result<void> run() {
    PIPER_CHECK_OK(collectives());
    PIPER_CHECK_OK(choose_devices());
    PIPER_CHECK_OK(channels());
    return progress();
  }

private:
  static uint64_t member(uint32_t group, DeviceIndex device) {
    return uint64_t{group} << 32 | device;
  }
  const Plan& plan_of(DeviceIndex device) const {
    return set_.plans[set_.devices.at(device).value];
  }
  Error wrong(DeviceIndex device, const Instruction& each, std::string message) const {
    Error error =
        wrong_instruction(set_, set_.devices.at(device), each, model_, std::move(message));
    error.where = fmt::format("device {}, {}", device, error.where);
    return error;
  }

  /// The other end of a transfer; none if there is no such device.
  uint32_t peer(DeviceIndex device, const Instruction& each) const {
    if (each.op == Opcode::SendState || each.op == Opcode::RecvState)
      return set_.devices.contains(each.device) ? each.device : kNone;
    const auto rank = rank_.find(member(each.self.value, device));
    const auto& devices = set_.groups[each.group.value].devices;
    if (rank == rank_.end() || rank->second >= devices.size() ||
        !set_.devices.contains(devices[rank->second]))
      return kNone;
    return devices[rank->second];
  }

  Message message(DeviceIndex device, const Instruction& each) const {
    const DeviceIndex other = peer(device, each);
    return {is_sending(each.op) ? Channel{device, other} : Channel{other, device},
            {each.edge.value, each.microbatch}};
  }

  /// The members of a group issue its collectives in one order.
  Result<void> collectives() const {
    struct Entry {
      RoleId role;
      const Instruction* instruction;
    };
    std::map<GroupId, std::vector<Entry>> first; // as the first role has them
    for (size_t r = 0; r < set_.plans.size(); ++r) {
      std::map<GroupId, std::vector<Entry>> own;
      for (const Instruction& each : set_.plans[r].instructions)
        if (is_collective(each.op))
          own[each.group].push_back({RoleId(r), &each});
      for (GroupId group : set_.roles[r].groups) {
        auto [entry, is_first] = first.emplace(group, own[group]);
        if (is_first)
          continue;
        const auto &theirs = entry->second, &ours = own[group];
        for (size_t i = 0; i < std::max(theirs.size(), ours.size()); ++i) {
          const bool both = i < theirs.size() && i < ours.size();
          if (both && theirs[i].instruction->op == ours[i].instruction->op &&
              theirs[i].instruction->edge == ours[i].instruction->edge &&
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

  /// All devices where they are few. Otherwise the first of each group and whoever they exchange
  /// messages with, and whoever those do: ranks do the same as rank 0 with peers of their own
  /// rank, so a plan set that can hang hangs there too.
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
      for (const Instruction& each : plan_of(queue.front()).instructions) {
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
    devices_.assign(chosen.begin(), chosen.end());
    return {};
  }

  struct Issued {
    DeviceIndex device;
    const Instruction* instruction;
  };

  /// Every channel's keys are the same at both ends, each once, in one order.
  Result<void> channels() const {
    std::map<Channel, std::vector<Issued>> sent, received;
    std::unordered_set<Message, MessageHash> seen_sent, seen_received;
    for (DeviceIndex device : devices_)
      for (const Instruction& each : plan_of(device).instructions) {
        if (!is_transfer(each.op))
          continue;
        const bool sends = is_sending(each.op);
        const Message its = message(device, each);
        if (!(sends ? seen_sent : seen_received).insert(its).second)
          return wrong(device, each,
                       fmt::format("{} twice: {}", sends ? "sent" : "received", text(its.key)));
        (sends ? sent : received)[its.channel].push_back({device, &each});
      }
    for (const auto& [channel, list] : sent)
      for (const Issued& each : list)
        if (!seen_received.contains(message(each.device, *each.instruction)))
          return wrong(each.device, *each.instruction,
                       fmt::format("device {} never receives {}", channel.to,
                                   text(message(each.device, *each.instruction).key)));
    for (const auto& [channel, list] : received)
      for (const Issued& each : list)
        if (!seen_sent.contains(message(each.device, *each.instruction)))
          return wrong(each.device, *each.instruction,
                       fmt::format("device {} never sends {}", channel.from,
                                   text(message(each.device, *each.instruction).key)));
    for (const auto& [channel, list] : received) {
      const std::vector<Issued>& sends = sent.at(channel);
      for (size_t i = 0; i < list.size(); ++i) {
        const Key got = message(list[i].device, *list[i].instruction).key;
        const Key came = message(sends[i].device, *sends[i].instruction).key;
        if (got != came)
          return wrong(list[i].device, *list[i].instruction,
                       fmt::format("it receives {} where device {} sends {}: a channel has one "
                                   "order",
                                   text(got), channel.from, text(came)));
      }
    }
    return {};
  }

  std::string text(const Key& key) const {
    std::string out = fmt::format("edge {}", key.edge);
    if (key.edge < set_.edges.size())
      out += fmt::format(" ({})", set_.edges[key.edge]);
    if (key.microbatch >= 0)
      out += fmt::format(" @{}", key.microbatch);
    return out;
  }

  // The simulation: each stream of each device runs its instructions in order. A transfer ends
  // when both ends have come to it, a collective when all members have.

  struct Stream {
    DeviceIndex device;
    const Plan* plan;
    std::vector<uint32_t> list; // of instructions
    size_t next = 0;
    bool posted = false; // its next instruction waits for others, who will finish it

    bool done() const { return next == list.size(); }
    const Instruction& head() const { return plan->instructions[list[next]]; }
  };
  struct Events {
    std::vector<bool> recorded;
    std::vector<std::vector<uint32_t>> waiting; // streams
  };
  struct Gathering {
    std::vector<uint32_t> arrived; // streams
  };

  Result<void> progress() {
    std::unordered_map<DeviceIndex, Events> events;
    for (DeviceIndex device : devices_) {
      const Plan& plan = plan_of(device);
      events[device] = {std::vector<bool>(plan.events),
                        std::vector<std::vector<uint32_t>>(plan.events)};
      first_stream_[device] = static_cast<uint32_t>(streams_.size());
      for (size_t s = 0; s < plan.streams.size(); ++s)
        streams_.push_back({device, &plan, {}});
      for (uint32_t i = 0; i < plan.instructions.size(); ++i)
        streams_[first_stream_[device] + plan.instructions[i].stream].list.push_back(i);
    }
    std::vector<size_t> members(set_.groups.size()); // that take part
    for (size_t g = 0; g < members.size(); ++g)
      for (DeviceIndex device : set_.groups[g].devices)
        members[g] += first_stream_.contains(device);

    std::unordered_map<Message, uint32_t, MessageHash> posted; // the stream that came first
    std::map<std::pair<GroupId, Key>, Gathering> gatherings;
    std::vector<uint32_t> ready(streams_.size());
    for (uint32_t s = 0; s < ready.size(); ++s)
      ready[s] = s;
    auto finish = [&](uint32_t s) {
      Stream& stream = streams_[s];
      Events& its = events[stream.device];
      if (EventId event = stream.head().records) {
        its.recorded[event.value] = true;
        ready.insert(ready.end(), its.waiting[event.value].begin(), its.waiting[event.value].end());
        its.waiting[event.value].clear();
      }
      stream.posted = false;
      ++stream.next;
    };
    auto finish_other = [&](uint32_t s) {
      finish(s);
      ready.push_back(s);
    };
    while (!ready.empty()) {
      const uint32_t s = ready.back();
      ready.pop_back();
      Stream& stream = streams_[s];
      while (!stream.done() && !stream.posted) {
        const Instruction& each = stream.head();
        Events& its = events[stream.device];
        const auto missing = std::find_if(each.waits.begin(), each.waits.end(),
                                          [&](EventId e) { return !its.recorded[e.value]; });
        if (missing != each.waits.end()) {
          its.waiting[missing->value].push_back(s);
          break;
        }
        if (is_transfer(each.op)) {
          const auto [other, first] = posted.emplace(message(stream.device, each), s);
          if (first) {
            stream.posted = true;
            break;
          }
          finish_other(other->second);
          posted.erase(other);
        } else if (is_collective(each.op)) {
          const std::pair key(each.group, Key{each.edge.value, each.microbatch});
          Gathering& gathering = gatherings[key];
          gathering.arrived.push_back(s);
          stream.posted = true;
          if (gathering.arrived.size() < members[each.group.value])
            break;
          const std::vector<uint32_t> all = std::move(gathering.arrived);
          gatherings.erase(key);
          for (uint32_t other : all)
            if (other != s)
              finish_other(other);
        }
        finish(s);
      }
    }
    for (uint32_t s = 0; s < streams_.size(); ++s)
      if (!streams_[s].done())
        return deadlock(s);
    return {};
  }

  /// A stream of `device` that still has an instruction for which `wanted` holds; none if there is
  /// no such stream.
  template <class Wanted> uint32_t stream_with(DeviceIndex device, Wanted&& wanted) const {
    const uint32_t first = first_stream_.at(device);
    for (uint32_t s = first; s < first + plan_of(device).streams.size(); ++s)
      for (size_t i = streams_[s].next; i < streams_[s].list.size(); ++i)
        if (wanted(streams_[s].plan->instructions[streams_[s].list[i]]))
          return s;
    return kNone;
  }

  /// The stream that a blocked stream waits for.
  uint32_t blocker(uint32_t s) const {
    const Stream& stream = streams_[s];
    const Instruction& head = stream.head();
    if (!stream.posted) {
      for (EventId event : head.waits)
        if (uint32_t other = stream_with(
                stream.device, [&](const Instruction& each) { return each.records == event; });
            other != kNone)
          return other;
      return kNone;
    }
    if (is_transfer(head.op)) {
      const Message wanted = message(stream.device, head);
      const DeviceIndex other = peer(stream.device, head);
      return stream_with(other, [&](const Instruction& each) {
        return is_transfer(each.op) && is_sending(each.op) != is_sending(head.op) &&
               message(other, each) == wanted;
      });
    }
    for (DeviceIndex device : set_.groups[head.group.value].devices) {
      if (!first_stream_.contains(device))
        continue;
      uint32_t other = stream_with(device, [&](const Instruction& each) {
        return each.op == head.op && each.group == head.group && each.edge == head.edge &&
               each.microbatch == head.microbatch;
      });
      if (other != kNone && !arrived(other, head))
        return other;
    }
    return kNone;
  }
  /// Whether the stream waits in the collective that `head` is.
  bool arrived(uint32_t s, const Instruction& head) const {
    const Stream& stream = streams_[s];
    return stream.posted && stream.head().op == head.op && stream.head().edge == head.edge &&
           stream.head().microbatch == head.microbatch;
  }

  Error deadlock(uint32_t start) const {
    // Every blocked stream waits for another one, so this ends in a circle.
    std::vector<uint32_t> path = {start};
    std::unordered_map<uint32_t, size_t> seen = {{start, 0}};
    size_t circle = 0;
    while (true) {
      const uint32_t next = blocker(path.back());
      if (next == kNone)
        break;
      auto [at, fresh] = seen.emplace(next, path.size());
      if (!fresh) {
        circle = at->second;
        break;
      }
      path.push_back(next);
    }
    path.erase(path.begin(), path.begin() + static_cast<ptrdiff_t>(circle));
    std::string message = "the plans deadlock when sends block: ";
    for (size_t i = 0; i <= path.size(); ++i) {
      const Stream& stream = streams_[path[i % path.size()]];
      const Instruction& head = stream.head();
      if (i)
        message += ", which waits for ";
      message += fmt::format("device {} at {}", stream.device,
                             set_.name(set_.devices.at(stream.device), head, &model_));
      if (is_transfer(head.op) || is_collective(head.op))
        message += fmt::format(" [{}]", text(Key{head.edge.value, head.microbatch}));
    }
    return wrong(streams_[path[0]].device, streams_[path[0]].head(), std::move(message));
  }

  const PlanSet& set_;
  const ModelSpec& model_;
  std::unordered_map<uint64_t, uint32_t> rank_; // of each member of each group
  std::vector<DeviceIndex> devices_;            // that are checked
  std::vector<Stream> streams_;
  std::unordered_map<DeviceIndex, uint32_t> first_stream_;
};

} // namespace

Result<void> verify_transfers(const PlanSet& set, const ModelSpec& model) {
  return TransferVerifier(set, model).run();
}

} // namespace piper::ir
