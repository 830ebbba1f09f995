#include "compiler/simulate/simulate.h"

#include "compiler/simulate/device_classes.h"
#include "compiler/simulate/fluid.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <unordered_map>

namespace piper::compiler {

using namespace ir;

namespace {

constexpr uint32_t kNone = UINT32_MAX;

struct Interval {
  double start = 0, end = 0;
};

/// Sorts and merges; returns the total length.
double merge(std::vector<Interval>& intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return std::pair(a.start, a.end) < std::pair(b.start, b.end);
  });
  std::vector<Interval> merged;
  for (const Interval& each : intervals)
    if (!merged.empty() && each.start <= merged.back().end)
      merged.back().end = std::max(merged.back().end, each.end);
    else if (each.end > each.start)
      merged.push_back(each);
  intervals = std::move(merged);
  double length = 0;
  for (const Interval& each : intervals)
    length += each.end - each.start;
  return length;
}

/// The length of what is in `a` and not in `b`; both merged.
double length_outside(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double length = 0;
  size_t next = 0;
  for (const Interval& each : a) {
    double from = each.start;
    while (next < b.size() && b[next].end <= from)
      ++next;
    for (size_t i = next; i < b.size() && b[i].start < each.end; ++i) {
      length += std::max(0.0, b[i].start - from);
      from = std::max(from, b[i].end);
    }
    length += std::max(0.0, each.end - from);
  }
  return length;
}

/// Instructions of one stream of one simulated device.
struct Stream {
  uint32_t device = 0;
  uint32_t index = 0; ///< in the plan
  bool compute = false;
  std::vector<uint32_t> list; ///< of instructions
  size_t next = 0;
  bool running = false; ///< its next instruction has begun
  double begun = 0;     ///< when that was
  double free_since = 0;

  bool done() const { return next == list.size(); }
};

struct EventState {
  bool recorded = false;
  Interval transfer;             ///< when what it waited for was under way; empty if it did not
  std::vector<uint32_t> waiting; ///< streams
};

struct SimulatedDevice {
  DeviceIndex index = 0;
  RoleId role;
  const Plan* plan = nullptr;
  double speed = 1;
  std::vector<EventState> events;
  MemoryLedger memory;
  std::vector<Interval> busy, waiting; ///< of compute streams
  double sent = 0;
};

/// A message under way, or waited for.
struct Message {
  uint32_t from = kNone, to = kNone;   ///< devices
  uint32_t send = kNone, recv = kNone; ///< instructions
  uint32_t receiver = kNone;           ///< the stream that waits for it
  bool sent = false, arrived = false;
  Interval moved;
  double bytes = 0;
  std::vector<Fluid::Use> links;
  bool handed_over = false; ///< the sender holds the tensor until the receiver takes it
};

/// A collective that members come to, then run.
struct Gathering {
  std::vector<uint32_t> arrived;                  ///< streams
  const std::vector<uint32_t>* members = nullptr; ///< classes that take part
  const Collective* plan = nullptr;               ///< null: nothing is sent
  size_t phase = 0;
  double bytes = 0;
  Interval moved;
  Team team; ///< of the first to come
};

class Simulator {
public:
  Simulator(const PlanSet& plans, const ModelSpec& model, const CostModel& costs,
            const Cluster& cluster, const SimulateOptions& options)
      : plans_(plans), model_(model), costs_(costs), cluster_(cluster), options_(options),
        ranks_(plans), collectives_(plans, cluster, cluster.collectives, costs.add),
        classes_(classify_devices(plans, cluster, ranks_, collectives_, options.every_device)) {}

  Result<Simulation> run() {
    set_up();
    for (uint32_t s = 0; s < streams_.size(); ++s)
      ready_.push_back(s);
    while (true) {
      drain();
      const std::optional<double> flow = fluid_.next_end();
      if (flow && (timers_.empty() || *flow <= timers_.top().time)) {
        now_ = *flow;
        act(fluid_.finish_next());
      } else if (!timers_.empty()) {
        now_ = timers_.top().time;
        const uint32_t action = timers_.top().action;
        timers_.pop();
        act(action);
      } else {
        break;
      }
    }
    for (const Stream& stream : streams_)
      if (!stream.done())
        return hung(stream);
    return report();
  }

private:
  // What happens when a timer or a flow ends.
  struct Action {
    enum class Kind : uint8_t { Begin, Finish, Move, Arrive, Phase, PhaseWork, PhaseBytes } kind;
    uint32_t which; ///< a stream, message or gathering
  };
  struct Timer {
    double time;
    uint64_t order;
    uint32_t action;
    bool operator>(const Timer& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };

  void set_up() {
    for (size_t r = 0; r < plans_.roles.size(); ++r)
      layouts_.emplace_back(plans_, RoleId(r), model_, costs_.moments);
    for (DeviceIndex index : classes_.representative) {
      const RoleId role = plans_.devices.at(index);
      const Plan& plan = plans_.plans[role.value];
      const auto device = static_cast<uint32_t>(devices_.size());
      devices_.push_back({index, role, &plan, cluster_.speed_of(index),
                          std::vector<EventState>(plan.events),
                          MemoryLedger(layouts_[role.value])});
      const size_t first = streams_.size();
      for (uint32_t s = 0; s < plan.streams.size(); ++s)
        streams_.push_back({.device = device, .index = s});
      for (uint32_t i = 0; i < plan.instructions.size(); ++i) {
        Stream& stream = streams_[first + plan.instructions[i].stream];
        stream.list.push_back(i);
        stream.compute = stream.compute || computes(plan.instructions[i]);
      }
    }
  }

  /// As the runtime decides which streams' times it reports.
  static bool computes(const Instruction& each) {
    return is_compute(each.op) || each.op == Opcode::Update || each.op == Opcode::UpdateMirror;
  }

  static bool waits_for_others(Opcode op) {
    return is_collective(op) || op == Opcode::Recv || op == Opcode::RecvState ||
           op == Opcode::RecvMirror;
  }

  // ---- what things take

  /// Seconds of the work of an instruction on a device of speed 1.
  double seconds(const Plan& plan, uint32_t index, const MemoryLayout& layout) const {
    const Instruction& each = plan.instructions[index];
    const auto calls = [&](Affine CallCost::*pass, double chunk) {
      const int64_t rows = plans_.rows(each.self);
      double total = chunk * static_cast<double>(each.chunks.size());
      for (const auto& chunk : each.chunks)
        for (CallId call : chunk)
          total += (costs_.calls[call.value].*pass).at(rows);
      return total;
    };
    const auto bytes = [&](SlotId slot) { return slot_bytes(plan, slot); };
    switch (each.op) {
    case Opcode::Forward:
    case Opcode::Recompute:
      return calls(&CallCost::forward, costs_.forward_chunk);
    case Opcode::Backward:
      return calls(&CallCost::backward, costs_.backward_chunk);
    case Opcode::BackwardInput:
      return calls(&CallCost::backward_input, costs_.backward_chunk);
    case Opcode::BackwardWeight:
      return calls(&CallCost::backward_weight, costs_.backward_chunk);
    case Opcode::Input:
      return costs_.copy * bytes(each.outputs.at(0));
    case Opcode::Add:
      return costs_.add * bytes(each.outputs.at(0)) * static_cast<double>(each.inputs.size() - 1);
    case Opcode::Update:
    case Opcode::UpdateMirror:
      return costs_.update * static_cast<double>(owned(each));
    case Opcode::Gather: // its own part, among those of the others
      return costs_.copy * owned_bytes(each);
    case Opcode::ReduceScatter: // to what earlier microbatches left in a shard of gradients
      return plans_.buckets[each.buckets.at(0).value].shard_grads ? costs_.add * owned_bytes(each)
                                                                  : 0;
    case Opcode::ZeroGrads: // it writes and does not read
      return costs_.copy / 2 * bucket_bytes(plans_, each);
    case Opcode::Offload:
    case Opcode::Fetch: {
      const auto bytes = static_cast<double>(layout.moved(index));
      return cluster_.pool > 0 ? bytes / cluster_.pool : costs_.copy * bytes;
    }
    case Opcode::CopyState:
      return costs_.copy * state_bytes(each.target);
    case Opcode::Seed:
    case Opcode::Loss:
    case Opcode::Send: // posts the message
    case Opcode::Recv:
    case Opcode::SendState:
    case Opcode::RecvState:
    case Opcode::SendMirror:
    case Opcode::RecvMirror:
    case Opcode::AllReduce:
    case Opcode::AllGather:
    case Opcode::Release:
    case Opcode::Redistribute:
    case Opcode::Commit:
      return 0;
    }
    return 0;
  }

  double slot_bytes(const Plan& plan, SlotId slot) const {
    const Slot& its = plan.slots[slot.value];
    return static_cast<double>(its.type.bytes(plans_.rows(its.value.at)));
  }
  /// Elements of the instruction's bucket that one rank owns.
  int64_t owned(const Instruction& each) const {
    return plans_.buckets[each.buckets.at(0).value].shard_numel();
  }
  double owned_bytes(const Instruction& each) const {
    return static_cast<double>(owned(each) *
                               size_of(plans_.buckets[each.buckets.at(0).value].dtype));
  }
  /// What a send sends.
  double message_bytes(const Plan& plan, const Instruction& each) const {
    if (each.op == Opcode::Send)
      return slot_bytes(plan, each.inputs.at(0));
    if (each.op == Opcode::SendState)
      return state_bytes(each.target);
    return owned_bytes(each);
  }
  static bool sends(Opcode op) {
    return op == Opcode::Send || op == Opcode::SendState || op == Opcode::SendMirror;
  }
  /// `range` is one of the plans' own epoch: the buckets of the one before are not here.
  double state_bytes(const StateRange& range) const {
    if (range.kind == StateKind::Step)
      return 8;
    return static_cast<double>(range.count * size_of(plans_.buckets[range.bucket.value].dtype));
  }

  // ---- links

  enum class Resource : uint8_t { PortOut, PortIn, UplinkOut, UplinkIn, Cores };
  uint32_t resource(Resource kind, size_t level, uint32_t which, double capacity) {
    auto [entry, added] = resources_.try_emplace({kind, level, which}, 0);
    if (added)
      entry->second = fluid_.add_resource(capacity);
    return entry->second;
  }

  /// What a device exchanges at a level in one direction: its port, and the uplinks on the way.
  /// `amount` and `streams` are the device's; an uplink carries those of `sharers` devices.
  void use_links(std::vector<Fluid::Use>& uses, uint32_t device, size_t level, bool out,
                 double amount) {
    const Level& at = cluster_.levels[level];
    if (at.bandwidth > 0 && amount > 0)
      uses.push_back(
          {resource(out ? Resource::PortOut : Resource::PortIn, level, device, at.bandwidth),
           amount, 1});
    for (size_t l = 0; l < level; ++l)
      if (cluster_.levels[l].uplink > 0 && amount > 0) {
        const double sharers = classes_.in_unit[l][device];
        uses.push_back({resource(out ? Resource::UplinkOut : Resource::UplinkIn, l,
                                 classes_.unit[l][device], cluster_.levels[l].uplink),
                        amount * sharers, sharers});
      }
  }

  /// What several devices of a unit put on its uplink becomes one use.
  static void join(std::vector<Fluid::Use>& uses) {
    std::sort(uses.begin(), uses.end(),
              [](const auto& a, const auto& b) { return a.resource < b.resource; });
    size_t kept = 0;
    for (size_t i = 0; i < uses.size(); ++i)
      if (kept > 0 && uses[kept - 1].resource == uses[i].resource) {
        uses[kept - 1].amount += uses[i].amount;
        uses[kept - 1].streams += uses[i].streams;
      } else {
        uses[kept++] = uses[i];
      }
    uses.resize(kept);
  }

  // ---- the machine

  uint32_t action(Action::Kind kind, uint32_t which) {
    if (unused_.empty()) {
      unused_.push_back(static_cast<uint32_t>(actions_.size()));
      actions_.emplace_back();
    }
    const uint32_t index = unused_.back();
    unused_.pop_back();
    actions_[index] = {kind, which};
    return index;
  }
  /// Does it now if there is nothing to wait for.
  void after(double wait, Action::Kind kind, uint32_t which) {
    if (wait > 0)
      timers_.push({now_ + wait, timer_count_++, action(kind, which)});
    else
      act({kind, which});
  }
  void act(uint32_t index) {
    const Action its = actions_[index];
    unused_.push_back(index);
    act(its);
  }
  void act(const Action& its) {
    switch (its.kind) {
    case Action::Kind::Begin:
      begin(its.which);
      break;
    case Action::Kind::Finish:
      finish(its.which);
      break;
    case Action::Kind::Move:
      move(its.which);
      break;
    case Action::Kind::Arrive:
      arrive(its.which);
      break;
    case Action::Kind::Phase:
      start_phase(its.which);
      break;
    case Action::Kind::PhaseWork:
      work_on_phase(its.which);
      break;
    case Action::Kind::PhaseBytes:
      move_phase(its.which);
      break;
    }
  }

  void drain() {
    while (!ready_.empty()) {
      const uint32_t s = ready_.front();
      ready_.pop_front();
      try_next(s);
    }
  }

  const Instruction& head(const Stream& stream) const {
    return devices_[stream.device].plan->instructions[stream.list[stream.next]];
  }

  void try_next(uint32_t s) {
    Stream& stream = streams_[s];
    if (stream.running || stream.done())
      return;
    SimulatedDevice& device = devices_[stream.device];
    const Instruction& each = head(stream);
    for (EventId id : each.waits)
      if (EventState& event = device.events[id.value]; !event.recorded) {
        event.waiting.push_back(s);
        return;
      }
    if (stream.compute)
      for (EventId id : each.waits) { // what kept it from starting when the one before was done
        const Interval& moved = device.events[id.value].transfer;
        if (moved.end > stream.free_since)
          device.waiting.push_back({std::max(moved.start, stream.free_since), moved.end});
      }
    stream.running = true;
    stream.begun = now_;
    const double work =
        seconds(*device.plan, stream.list[stream.next], layouts_[device.role.value]) / device.speed;
    const bool waits = waits_for_others(each.op);
    if (!waits)
      device.memory.begin(stream.list[stream.next]);
    double total = costs_.instruction / device.speed + work;
    if (options_.seconds && !waits)
      total = (*options_.seconds)[stream.device][stream.list[stream.next]];
    const Action::Kind next = waits ? Action::Kind::Begin : Action::Kind::Finish;
    std::vector<Fluid::Use> cores;
    if (work > 0)
      use_cores(cores, stream.device, total);
    if (cores.empty())
      after(total, next, s);
    else
      fluid_.start(now_, total, std::move(cores), action(next, s));
  }

  /// What `seconds` of a device's work take of cores that devices share, if they share any.
  void use_cores(std::vector<Fluid::Use>& uses, uint32_t device, double seconds) {
    for (size_t l = 0; l < cluster_.levels.size(); ++l)
      if (cluster_.levels[l].cores > 0 && seconds > 0) {
        const double sharers = classes_.in_unit[l][device];
        uses.push_back(
            {resource(Resource::Cores, l, classes_.unit[l][device], cluster_.levels[l].cores),
             seconds * sharers, sharers});
      }
  }

  /// A receive or a collective comes to where it waits for others.
  void begin(uint32_t s) {
    const Stream& stream = streams_[s];
    const Instruction& each = head(stream);
    devices_[stream.device].memory.begin(stream.list[stream.next]);
    if (is_collective(each.op)) {
      join_gathering(s);
      return;
    }
    const uint32_t m = message(stream, each);
    Message& its = messages_[m];
    its.receiver = s;
    its.recv = stream.list[stream.next];
    if (its.arrived)
      receive(m);
  }

  void finish(uint32_t s) {
    const Stream& stream = streams_[s];
    const Instruction& each = head(stream);
    if (sends(each.op))
      send(stream, each, stream.list[stream.next]);
    end(s, {stream.begun, now_}, {});
  }

  /// The instruction at the head of the stream is done.
  void end(uint32_t s, Interval shown, Interval transfer) {
    Stream& stream = streams_[s];
    SimulatedDevice& device = devices_[stream.device];
    const uint32_t index = stream.list[stream.next];
    const Instruction& each = head(stream);
    device.memory.end(index);
    if (stream.compute) {
      if (!waits_for_others(each.op))
        device.busy.push_back({stream.begun, now_});
      else if (transfer.end > transfer.start)
        device.waiting.push_back({std::max(transfer.start, stream.begun), transfer.end});
    }
    if (options_.timeline)
      spans_.push_back({stream.device, stream.index, index, shown.start, shown.end});
    if (each.records) {
      EventState& event = device.events[each.records.value];
      event.recorded = true;
      event.transfer = transfer;
      ready_.insert(ready_.end(), event.waiting.begin(), event.waiting.end());
      event.waiting.clear();
    }
    stream.running = false;
    stream.free_since = now_;
    ++stream.next;
    makespan_ = std::max(makespan_, now_);
    ready_.push_back(s);
  }

  // ---- messages

  uint32_t message(const Stream& stream, const Instruction& each) {
    const uint32_t self = stream.device;
    const uint32_t other = classes_.of.at(ranks_.peer(devices_[self].index, each));
    const bool out = sends(each.op);
    const std::tuple key{each.edge.value, each.microbatch, out ? self : other, out ? other : self};
    auto [entry, added] = by_key_.try_emplace(key, static_cast<uint32_t>(messages_.size()));
    if (added) {
      messages_.emplace_back();
      messages_.back().from = out ? self : other;
      messages_.back().to = out ? other : self;
    }
    return entry->second;
  }

  void send(const Stream& stream, const Instruction& each, uint32_t index) {
    const uint32_t m = message(stream, each);
    Message& its = messages_[m];
    SimulatedDevice& device = devices_[stream.device];
    its.send = index;
    its.sent = true;
    its.moved.start = now_;
    its.bytes = message_bytes(*device.plan, each);
    device.sent += its.bytes;
    const size_t level = cluster_.level_between(device.index, ranks_.peer(device.index, each));
    its.handed_over = cluster_.levels[level].hands_over;
    if (!its.handed_over) {
      use_links(its.links, its.from, level, true, its.bytes);
      use_links(its.links, its.to, level, false, its.bytes);
    }
    after(cluster_.levels[level].latency, Action::Kind::Move, m);
  }

  void move(uint32_t m) {
    Message& its = messages_[m];
    if (its.links.empty())
      arrive(m);
    else
      fluid_.start(now_, 0, std::move(its.links), action(Action::Kind::Arrive, m));
  }

  void arrive(uint32_t m) {
    Message& its = messages_[m];
    its.arrived = true;
    its.moved.end = now_;
    if (!its.handed_over)
      let_go(its);
    if (options_.timeline)
      moved_.push_back(m);
    if (its.receiver != kNone)
      receive(m);
  }

  void let_go(const Message& its) { devices_[its.from].memory.delivered(its.send); }

  void receive(uint32_t m) {
    const Message& its = messages_[m];
    if (its.handed_over)
      let_go(its);
    const double begun = streams_[its.receiver].begun;
    end(its.receiver, {std::max(begun, std::min(its.moved.start, now_)), now_}, its.moved);
  }

  // ---- collectives

  void join_gathering(uint32_t s) {
    const Stream& stream = streams_[s];
    const Instruction& each = head(stream);
    const DeviceIndex self = devices_[stream.device].index;
    const Team team = plans_.team_of(each, static_cast<int>(ranks_.of(each.group, self)));
    const DeviceClasses::TeamClass& members = classes_.team.at(team);
    const std::tuple key{members.number, each.edge.value, each.microbatch};
    auto [entry, added] =
        by_collective_.try_emplace(key, static_cast<uint32_t>(gatherings_.size()));
    const uint32_t g = entry->second;
    if (added) {
      Gathering& made = gatherings_.emplace_back();
      made.team = team;
      made.members = &members.members;
      made.bytes = collective_bytes(plans_, *devices_[stream.device].plan, each);
      if (const auto kind = collective_kind(plans_, each))
        made.plan = &collectives_.of(*kind, team, made.bytes);
    }
    Gathering& its = gatherings_[g];
    its.arrived.push_back(s);
    if (its.arrived.size() < its.members->size())
      return;
    its.moved.start = now_;
    start_phase(g);
  }

  void start_phase(uint32_t g) {
    Gathering& its = gatherings_[g];
    if (!its.plan || its.phase == its.plan->phases.size()) {
      its.moved.end = now_;
      for (uint32_t s : std::exchange(its.arrived, {})) {
        SimulatedDevice& device = devices_[streams_[s].device];
        if (its.plan)
          device.sent += its.bytes * its.plan->sent(place(its, device.index));
        end(s, its.moved, its.moved);
      }
      return;
    }
    after(its.plan->phases[its.phase].latency, Action::Kind::PhaseWork, g);
  }

  /// What members do themselves: sums, of what they read where it lies, and copies where they share
  /// an address space. All go at the pace of the slowest.
  void work_on_phase(uint32_t g) {
    Gathering& its = gatherings_[g];
    const Phase& phase = its.plan->phases[its.phase];
    double longest = 0;
    std::vector<Fluid::Use> cores;
    for (uint32_t device : *its.members) {
      double work = phase.added * costs_.add;
      for (const PortUse& use : phase.members[place(its, devices_[device].index)])
        if (cluster_.levels[use.level].hands_over && phase.added == 0)
          work += use.in * costs_.copy;
      work *= its.bytes / devices_[device].speed;
      longest = std::max(longest, work);
      use_cores(cores, device, work);
    }
    join(cores);
    if (cores.empty())
      after(longest, Action::Kind::PhaseBytes, g);
    else
      fluid_.start(now_, longest, std::move(cores), action(Action::Kind::PhaseBytes, g));
  }

  /// Of a member in its own team: teams of one number use links alike.
  size_t place(const Gathering& its, DeviceIndex device) const {
    return its.team.place_of(static_cast<int>(ranks_.of(its.team.group, device)));
  }

  void move_phase(uint32_t g) {
    Gathering& its = gatherings_[g];
    const Phase& phase = its.plan->phases[its.phase++];
    std::vector<Fluid::Use> uses;
    for (uint32_t device : *its.members)
      for (const PortUse& use : phase.members[place(its, devices_[device].index)]) {
        use_links(uses, device, use.level, true, use.out * its.bytes);
        use_links(uses, device, use.level, false, use.in * its.bytes);
      }
    join(uses);
    if (uses.empty())
      start_phase(g);
    else
      fluid_.start(now_, 0, std::move(uses), action(Action::Kind::Phase, g));
  }

  // ---- the end

  Error hung(const Stream& stream) const {
    const SimulatedDevice& device = devices_[stream.device];
    return internal_error("the simulated plans hang",
                          fmt::format("device {}, {}", device.index,
                                      plans_.name(device.role, head(stream), &model_)));
  }

  Simulation report() {
    Simulation result;
    for (uint32_t d = 0; d < devices_.size(); ++d) {
      SimulatedDevice& device = devices_[d];
      DeviceReport its{.device = device.index, .count = classes_.size[d], .role = device.role};
      its.busy = merge(device.busy);
      merge(device.waiting);
      its.exposed = length_outside(device.waiting, device.busy);
      its.bubble = makespan_ - its.busy - its.exposed;
      its.sent = device.sent;
      its.peak = device.memory.peak();
      its.at_peak = device.memory.at_peak();
      result.devices.push_back(its);
    }
    for (uint32_t m : moved_) {
      const Message& its = messages_[m];
      result.transfers.push_back(
          {its.from, its.to, its.send, its.recv, its.moved.start, its.moved.end});
    }
    result.spans = std::move(spans_);
    result.makespan = makespan_ + costs_.iteration;
    return result;
  }

  const PlanSet& plans_;
  const ModelSpec& model_;
  const CostModel& costs_;
  const Cluster& cluster_;
  const SimulateOptions& options_;
  const Ranks ranks_;
  CollectivePlans collectives_;
  const DeviceClasses classes_;
  std::vector<MemoryLayout> layouts_;    ///< by role
  std::vector<SimulatedDevice> devices_; ///< by class
  std::vector<Stream> streams_;

  double now_ = 0, makespan_ = 0;
  Fluid fluid_;
  std::map<std::tuple<Resource, size_t, uint32_t>, uint32_t> resources_;
  std::vector<Action> actions_;
  std::vector<uint32_t> unused_; ///< entries of actions_
  std::priority_queue<Timer, std::vector<Timer>, std::greater<Timer>> timers_;
  uint64_t timer_count_ = 0;
  std::deque<uint32_t> ready_; ///< streams that may be able to go on

  std::deque<Message> messages_;
  std::map<std::tuple<uint32_t, int32_t, uint32_t, uint32_t>, uint32_t> by_key_;
  std::deque<Gathering> gatherings_;
  std::map<std::tuple<uint32_t, uint32_t, int32_t>, uint32_t> by_collective_;
  std::vector<Span> spans_;
  std::vector<uint32_t> moved_; ///< messages, in the order in which they arrived
};

} // namespace

const DeviceReport& Simulation::busiest() const {
  return *std::min_element(devices.begin(), devices.end(), [](const auto& a, const auto& b) {
    return a.exposed + a.bubble < b.exposed + b.bubble;
  });
}

int64_t Simulation::peak() const {
  int64_t most = 0;
  for (const DeviceReport& device : devices)
    most = std::max(most, device.peak);
  return most;
}

Result<Simulation> simulate(const PlanSet& plans, const ModelSpec& model, const CostModel& costs,
                            const Cluster& cluster, const SimulateOptions& options) {
  if (costs.calls.size() != model.calls.size())
    return user_error(fmt::format("the cost model has {} calls, the model '{}' {}",
                                  costs.calls.size(), model.name, model.calls.size()));
  if (plans.devices.empty())
    return user_error("there is no plan to simulate");
  if (options.seconds && (!options.every_device || options.seconds->size() != plans.devices.size()))
    return internal_error("the seconds of instructions are not those of every device");
  return Simulator(plans, model, costs, cluster, options).run();
}

} // namespace piper::compiler
