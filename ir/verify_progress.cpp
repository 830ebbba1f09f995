// Everything ends. The plans are run as a net of waits: an instruction waits for the one before it
// on its stream and for events; a send and its receive, and the members of a collective, are done
// together, as if nothing were buffered; a channel and a group take one transfer or collective at a
// time, in issue order. What ends so ends under any buffering: a transport that does more at once
// only takes waits away.
#include "ir/verify_plan.h"

#include <map>
#include <numeric>
#include <tuple>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

/// What the devices of a role share.
struct RoleLinks {
  std::vector<uint32_t> next_on_stream; ///< of each instruction
  std::vector<uint32_t> next_in_group;  ///< of each collective, the next one of its group
  std::vector<uint32_t> waits;        ///< of each instruction: those that it waits for, all in all
  std::vector<uint32_t> recorder;     ///< of each event
  std::vector<uint32_t> first_waiter; ///< of each event (and the end), into `waiters`
  std::vector<uint32_t> waiters;      ///< instructions

  explicit RoleLinks(const Plan& plan)
      : next_on_stream(plan.instructions.size(), kNone),
        next_in_group(plan.instructions.size(), kNone), waits(plan.instructions.size()),
        recorder(plan.events, kNone), first_waiter(plan.events + 1) {
    std::vector<uint32_t> last(plan.streams.size(), kNone);
    std::map<GroupId, uint32_t> last_in_group;
    for (uint32_t i = 0; i < plan.instructions.size(); ++i) {
      const Instruction& each = plan.instructions[i];
      if (last[each.stream] != kNone) {
        next_on_stream[last[each.stream]] = i;
        ++waits[i];
      }
      last[each.stream] = i;
      if (is_collective(each.op)) {
        auto [entry, fresh] = last_in_group.try_emplace(each.group, i);
        if (!fresh) {
          next_in_group[entry->second] = i;
          ++waits[i];
        }
        entry->second = i;
      }
      waits[i] += static_cast<uint32_t>(each.waits.size());
      for (EventId event : each.waits)
        ++first_waiter[event.value + 1];
      if (each.records)
        recorder[each.records.value] = i;
    }
    std::partial_sum(first_waiter.begin(), first_waiter.end(), first_waiter.begin());
    waiters.resize(first_waiter.back());
    std::vector<uint32_t> next(first_waiter.begin(), first_waiter.end() - 1);
    for (uint32_t i = 0; i < plan.instructions.size(); ++i)
      for (EventId event : plan.instructions[i].waits)
        waiters[next[event.value]++] = i;
  }
};

class ProgressVerifier {
public:
  explicit ProgressVerifier(const JointPlan& joint)
      : joint_(joint), set_(joint.set), waits_(joint.partner.size()), done_(joint.partner.size()) {
    for (const Plan& plan : set_.plans)
      links_.emplace_back(plan);
    for (size_t d = 0; d < joint.devices.size(); ++d) {
      const RoleLinks& links = links_of(d);
      for (size_t i = 0; i < links.waits.size(); ++i)
        waits_[joint.first[d] + i] += links.waits[i];
    }
    for (uint32_t next : joint.next_in_channel)
      if (next != kNone)
        ++waits_[next];
  }

  Result<std::vector<uint32_t>> run() {
    for (uint32_t node = 0; node < waits_.size(); ++node)
      if (waits_[node] == 0)
        ready_.push_back(node);
    while (!ready_.empty()) {
      const uint32_t node = ready_.back();
      ready_.pop_back();
      const size_t device = joint_.index_of(node);
      const Instruction& each = at(device, node);
      if (const uint32_t other = joint_.partner[node]; other != kNone) {
        if (done_[node] || waits_[other] != 0)
          continue; // the other end came later and finished both, or will
        const bool sends = is_sending(each.op);
        finish(sends ? node : other, sends ? device : joint_.index_of(other));
        finish(sends ? other : node, sends ? joint_.index_of(other) : device);
      } else if (is_collective(each.op)) {
        const Team team = team_of(device, each);
        std::vector<uint32_t>& arrived = arrived_[{team, each.edge}];
        arrived.push_back(node);
        if (arrived.size() < members_looked_at(team))
          continue;
        for (uint32_t member : arrived)
          finish(member, joint_.index_of(member));
        arrived_.erase({team, each.edge});
      } else {
        finish(node, device);
      }
    }
    if (order_.size() < waits_.size())
      return deadlock();
    return std::move(order_);
  }

private:
  const RoleLinks& links_of(size_t device) const {
    return links_[set_.devices.at(joint_.devices[device]).value];
  }
  const Instruction& at(size_t device, uint32_t node) const {
    return joint_.plan(device).instructions[node - joint_.first[device]];
  }

  Team team_of(size_t device, const Instruction& each) {
    const auto [rank, fresh] = ranks_.try_emplace({device, each.group});
    if (fresh)
      rank->second = set_.rank_in(each.group, joint_.devices[device]);
    return set_.team_of(each, rank->second);
  }
  size_t members_looked_at(const Team& team) {
    const auto [count, fresh] = looked_at_.try_emplace(team);
    if (fresh) {
      const std::vector<DeviceIndex> all = set_.members(team);
      count->second =
          static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](DeviceIndex participant) {
            return std::binary_search(joint_.devices.begin(), joint_.devices.end(), participant);
          }));
    }
    return count->second;
  }

  void finish(uint32_t node, size_t device) {
    done_[node] = true;
    order_.push_back(node);
    const RoleLinks& links = links_of(device);
    const uint32_t first = joint_.first[device], i = node - first;
    auto release = [&](uint32_t next) {
      if (--waits_[next] == 0)
        ready_.push_back(next);
    };
    if (links.next_on_stream[i] != kNone)
      release(first + links.next_on_stream[i]);
    if (links.next_in_group[i] != kNone)
      release(first + links.next_in_group[i]);
    if (joint_.next_in_channel[node] != kNone)
      release(joint_.next_in_channel[node]);
    if (EventId event = at(device, node).records)
      for (uint32_t w = links.first_waiter[event.value]; w < links.first_waiter[event.value + 1];
           ++w)
        release(first + links.waiters[w]);
  }

  /// A stream that has come to a halt, at the node `head`.
  struct Blocked {
    size_t device;
    uint32_t head;
    std::vector<uint32_t> by; ///< the blocked streams that it waits for
  };

  /// Tells the shortest circle of streams that wait for each other.
  Error deadlock() {
    std::vector<Blocked> blocked;
    std::map<std::pair<size_t, uint32_t>, uint32_t> of_stream; // device, stream -> blocked
    for (size_t d = 0; d < joint_.devices.size(); ++d)
      for (uint32_t node = joint_.first[d]; node < joint_.first[d + 1]; ++node)
        if (!done_[node] &&
            of_stream.try_emplace({d, at(d, node).stream}, static_cast<uint32_t>(blocked.size()))
                .second)
          blocked.push_back({d, node, {}});
    std::vector<uint32_t> before_in_channel(waits_.size(), kNone);
    for (uint32_t node = 0; node < waits_.size(); ++node)
      if (joint_.next_in_channel[node] != kNone)
        before_in_channel[joint_.next_in_channel[node]] = node;

    for (Blocked& each : blocked) {
      const Instruction& head = at(each.device, each.head);
      auto wait_for = [&](size_t device, uint32_t node) {
        if (!done_[node])
          each.by.push_back(of_stream.at({device, at(device, node).stream}));
      };
      for (EventId event : head.waits)
        wait_for(each.device,
                 joint_.first[each.device] + links_of(each.device).recorder[event.value]);
      if (before_in_channel[each.head] != kNone)
        wait_for(each.device, before_in_channel[each.head]);
      if (is_collective(head.op)) {
        const auto& next = links_of(each.device).next_in_group;
        for (uint32_t i = 0; i < next.size(); ++i)
          if (next[i] == each.head - joint_.first[each.device])
            wait_for(each.device, joint_.first[each.device] + i);
      }
      if (waits_[each.head] != 0)
        continue;
      if (const uint32_t other = joint_.partner[each.head]; other != kNone)
        wait_for(joint_.index_of(other), other);
      if (is_collective(head.op))
        for (uint32_t missing : missing_members(each.device, head))
          wait_for(joint_.index_of(missing), missing);
    }
    return describe(blocked, shortest_circle(blocked));
  }

  /// The nodes of a collective that have not come to it.
  std::vector<uint32_t> missing_members(size_t device, const Instruction& head) {
    const std::vector<DeviceIndex> all = set_.members(team_of(device, head));
    std::vector<uint32_t> missing;
    for (size_t d = 0; d < joint_.devices.size(); ++d) {
      if (std::find(all.begin(), all.end(), joint_.devices[d]) == all.end())
        continue;
      for (uint32_t node = joint_.first[d]; node < joint_.first[d + 1]; ++node) {
        const Instruction& each = at(d, node);
        if (is_collective(each.op) && each.group == head.group && each.edge == head.edge &&
            waits_[node] != 0)
          missing.push_back(node);
      }
    }
    return missing;
  }

  static std::vector<uint32_t> shortest_circle(const std::vector<Blocked>& blocked) {
    constexpr size_t kVisits = 1'000'000; // bounds the search in a large set
    std::vector<uint32_t> best, seen_from(blocked.size(), kNone), parent(blocked.size());
    size_t visits = 0;
    for (uint32_t start = 0; start < blocked.size() && (best.empty() || visits < kVisits);
         ++start) {
      std::vector<uint32_t> queue = {start};
      uint32_t last = kNone;
      for (size_t q = 0; q < queue.size() && last == kNone; ++q, ++visits)
        for (uint32_t next : blocked[queue[q]].by) {
          if (next == start) {
            last = queue[q];
            break;
          }
          if (seen_from[next] == start)
            continue;
          seen_from[next] = start;
          parent[next] = queue[q];
          queue.push_back(next);
        }
      if (last == kNone)
        continue;
      std::vector<uint32_t> circle = {last};
      while (circle.back() != start)
        circle.push_back(parent[circle.back()]);
      if (best.empty() || circle.size() < best.size())
        best.assign(circle.rbegin(), circle.rend());
    }
    return best;
  }

  Error describe(const std::vector<Blocked>& blocked, const std::vector<uint32_t>& circle) const {
    std::string message = "the plans deadlock when sends block: ";
    for (size_t i = 0; i <= circle.size(); ++i) {
      const Blocked& each = blocked[circle[i % circle.size()]];
      const DeviceIndex device = joint_.devices[each.device];
      const Instruction& head = at(each.device, each.head);
      if (i)
        message += ", which waits for ";
      message += fmt::format("device {} at {}", device,
                             set_.name(set_.devices.at(device), head, &joint_.model));
      if (is_transfer(head.op) || is_collective(head.op)) {
        message += fmt::format(" [edge {} ({})", head.edge.value, set_.edges[head.edge.value]);
        message += head.microbatch >= 0 ? fmt::format(" @{}]", head.microbatch) : "]";
      }
    }
    const Blocked& first = blocked[circle[0]];
    const DeviceIndex device = joint_.devices[first.device];
    Error error = wrong_instruction(set_, set_.devices.at(device), at(first.device, first.head),
                                    joint_.model, std::move(message));
    error.where = fmt::format("device {}, {}", device, error.where);
    return error;
  }

  const JointPlan& joint_;
  const PlanSet& set_;
  std::vector<RoleLinks> links_; ///< of each role
  std::vector<uint32_t> waits_;  ///< of each node: what it still waits for, beside its partners
  std::vector<bool> done_;       ///< of each node
  std::vector<uint32_t> order_;  ///< nodes, as they ended
  std::vector<uint32_t> ready_;  ///< nodes
  std::map<std::pair<size_t, GroupId>, int> ranks_; ///< of each device
  std::map<Team, size_t> looked_at_;                ///< members of each team among the devices here
  std::map<std::pair<Team, EdgeId>, std::vector<uint32_t>> arrived_; ///< nodes of collectives
};

} // namespace

Result<std::vector<uint32_t>> verify_progress(const JointPlan& joint) {
  return ProgressVerifier(joint).run();
}

} // namespace piper::ir
