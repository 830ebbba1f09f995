#include "ir/memory_bound.h"

#include "ir/verify_plan.h"

#include <map>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;
/// Instructions of all devices times devices, beyond which roles stand for their devices.
constexpr size_t kExhaustive = 100'000'000;

/// Bytes by holder. One instruction may take and give back some of each.
struct Bytes {
  int64_t values = 0, saved = 0, working = 0;
  Bytes& operator+=(const Bytes& other) {
    values += other.values;
    saved += other.saved;
    working += other.working;
    return *this;
  }
  Bytes& operator-=(const Bytes& other) {
    values -= other.values;
    saved -= other.saved;
    working -= other.working;
    return *this;
  }
  int64_t sum() const { return values + saved + working; }
};

/// What each instruction of a role takes when it starts and gives back when it ends, but for what
/// it sends, which it gives back when that is received.
struct RoleBytes {
  std::vector<Bytes> takes, gives, delivered;
};

class Sizes {
public:
  Sizes(const PlanSet& set, const ModelSpec& model, const MemoryCosts& costs)
      : set_(set), model_(model), costs_(costs), made_in_(model.values.size(), kNone) {}

  RoleBytes of(const Plan& plan) {
    const size_t count = plan.instructions.size();
    RoleBytes bytes{std::vector<Bytes>(count), std::vector<Bytes>(count),
                    std::vector<Bytes>(count)};
    std::vector<Bytes> slots(plan.slots.size());
    for (size_t i = 0; i < count; ++i) {
      const Instruction& each = plan.instructions[i];
      for (size_t o = 0; o < each.outputs.size(); ++o)
        if (each.outputs[o]) {
          Bytes& slot = slots[each.outputs[o].value];
          slot = of_slot(plan.slots[each.outputs[o].value], each, o);
          bytes.takes[i] += slot;
        }
      // A sharded array, whole in its window.
      if (each.op == Opcode::Gather || each.op == Opcode::ZeroGrads)
        bytes.takes[i].working += bytes_of(each.buckets[0]);
      if (each.op == Opcode::Release ||
          (each.op == Opcode::ReduceScatter && set_.buckets[each.buckets[0].value].shard_grads))
        bytes.gives[i].working += bytes_of(each.buckets[0]);
      const Bytes working{0, 0, working_of(each)};
      bytes.takes[i] += working;
      bytes.gives[i] += working;
      if (each.op == Opcode::Send) {
        // The message shares the slot's memory, or is all that is left of it.
        bytes.delivered[i] = slots[each.inputs[0].value];
        if (std::find(each.frees.begin(), each.frees.end(), each.inputs[0]) == each.frees.end())
          bytes.takes[i] += bytes.delivered[i];
      }
    }
    for (size_t i = 0; i < count; ++i) {
      const Instruction& each = plan.instructions[i];
      for (SlotId slot : each.frees)
        if (each.op != Opcode::Send || slot != each.inputs[0])
          bytes.gives[i] += slots[slot.value];
    }
    return bytes;
  }

private:
  int64_t bytes_of(BucketId bucket) const {
    return set_.buckets[bucket.value].numel * size_of(set_.buckets[bucket.value].dtype);
  }
  Bytes of_slot(const Slot& slot, const Instruction& writer, size_t output) const {
    const int64_t rows = set_.rows(writer.self);
    Bytes bytes;
    const bool saved = slot.value.kind == ValueKind::Saved;
    if (!saved && slot.value.kind != ValueKind::Deferred)
      bytes.values = slot.type.bytes(rows);
    else if (!costs_.calls.empty())
      for (CallId call : writer.chunks[output]) {
        const CallMemory& its = costs_.calls[call.value];
        bytes.saved += rows * (saved ? its.saved : its.deferred);
      }
    return bytes;
  }

  /// The greediest of its calls, and what its chunks hand to each other.
  int64_t working_of(const Instruction& each) {
    if (each.chunks.empty())
      return 0;
    const int64_t rows = set_.rows(each.self);
    const bool is_forward = goes_forward(each.op);
    int64_t most = 0, between = 0;
    for (uint32_t c = 0; c < each.chunks.size(); ++c)
      for (CallId call : each.chunks[c]) {
        if (!costs_.calls.empty()) {
          const CallMemory& its = costs_.calls[call.value];
          most = std::max(most, rows * (is_forward ? its.forward : its.backward));
        }
        for (ValueId v : model_.call(call).inputs)
          if (made_in_[v.value] != kNone && made_in_[v.value] != c)
            between += model_.value(v).type.bytes(rows);
        for (ValueId v : model_.call(call).outputs)
          made_in_[v.value] = c;
      }
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk)
        for (ValueId v : model_.call(call).outputs)
          made_in_[v.value] = kNone;
    return most + between;
  }

  const PlanSet& set_;
  const ModelSpec& model_;
  const MemoryCosts& costs_;
  std::vector<uint32_t> made_in_; ///< of each value, the chunk of the instruction looked at
};

/// A clock says of each lane of a device how far it has come. Lanes are the device's streams and,
/// for each channel that leaves it, the deliveries on it.
using Clock = std::vector<uint32_t>;

void join(Clock& to, const Clock& from) {
  for (size_t lane = 0; lane < to.size(); ++lane)
    to[lane] = std::max(to[lane], from[lane]);
}

/// The bound of one device.
class DeviceBound {
public:
  DeviceBound(const JointPlan& joint, const std::vector<uint32_t>& order, size_t device,
              const RoleBytes& bytes)
      : joint_(joint), order_(order), device_(device), plan_(joint.plan(device)),
        place_(joint.partner.size()), lanes_(plan_.streams.size()) {
    std::map<size_t, uint32_t> channels; // receiving device -> lane
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      const uint32_t node = joint.first[device] + i;
      enter(node, plan_.instructions[i].stream, bytes.takes[i], bytes.gives[i]);
      if (plan_.instructions[i].op != Opcode::Send)
        continue;
      const uint32_t recv = joint.partner[node];
      auto [channel, fresh] =
          channels.try_emplace(joint.index_of(recv), static_cast<uint32_t>(lanes_.size()));
      if (fresh)
        lanes_.emplace_back();
      enter(recv, channel->second, {}, bytes.delivered[i]);
    }
  }

  /// The instruction at which most may be live, and what. Every moment lies between the starts of
  /// two neighbours on a stream; what may be live then is all but what has ended for certain when
  /// the first of them starts, and what cannot start before the second does. The largest such sum
  /// over one stream is a bound, whichever the stream: the least of them is given.
  std::pair<uint32_t, Bytes> run() const {
    const std::vector<Clock> ended = sweep(false), unbegun = sweep(true);
    // Of each lane, what its first k give back and what its last k take.
    std::vector<std::vector<Bytes>> given(lanes_.size()), taken(lanes_.size());
    Bytes all;
    for (size_t l = 0; l < lanes_.size(); ++l) {
      Bytes gives, takes;
      for (size_t k = 0; k <= lanes_[l].gives.size(); ++k) {
        given[l].push_back(gives);
        taken[l].push_back(takes);
        if (k == lanes_[l].gives.size())
          break;
        gives += lanes_[l].gives[k];
        takes += lanes_[l].takes[lanes_[l].takes.size() - 1 - k];
      }
      all += takes;
    }
    const auto count = static_cast<uint32_t>(plan_.instructions.size());
    std::vector<std::pair<uint32_t, Bytes>> worst(plan_.streams.size());
    for (uint32_t i = 0; i < ended.size(); ++i) {
      Bytes live = all;
      for (size_t l = 0; l < lanes_.size(); ++l) {
        live -= given[l][ended[i][l]];
        live -= taken[l][unbegun[i][l]];
      }
      auto& its = worst[i < count ? plan_.instructions[i].stream : i - count];
      if (live.sum() > its.second.sum())
        its = {i < count ? i : 0, live};
    }
    return worst.empty()
               ? std::pair<uint32_t, Bytes>()
               : *std::min_element(worst.begin(), worst.end(), [](const auto& a, const auto& b) {
                   return a.second.sum() < b.second.sum();
                 });
  }

private:
  struct Lane {
    std::vector<Bytes> takes, gives; ///< of each entry, in order
  };
  struct Place {
    uint32_t lane = kNone, position = 0;
  };

  void enter(uint32_t node, uint32_t lane, const Bytes& takes, const Bytes& gives) {
    place_[node] = {lane, static_cast<uint32_t>(lanes_[lane].takes.size())};
    lanes_[lane].takes.push_back(takes);
    lanes_[lane].gives.push_back(gives);
  }

  /// Of each instruction of the device, how many of each lane have ended for certain when it
  /// starts; backwards in time, how many (from the lane's end) cannot start before the next one on
  /// its stream does. Behind these, of each stream, the same for the time before its first
  /// instruction. An instruction comes after the one before it on its stream and after the events
  /// that it waits for; a receive ends after its send has started, and a collective after all
  /// members have.
  std::vector<Clock> sweep(bool backwards) const {
    std::vector<size_t> streams = {0}, events = {0}; // of each device, its first
    for (size_t d = 0; d < joint_.devices.size(); ++d) {
      streams.push_back(streams.back() + joint_.plan(d).streams.size());
      events.push_back(events.back() + joint_.plan(d).events);
    }
    const Clock zero(lanes_.size());
    std::vector<Clock> result(plan_.instructions.size() + plan_.streams.size(), zero);
    std::vector<Clock> at_stream(streams.back(), zero), at_event(events.back(), zero), starts;
    for (size_t done = 0; done < order_.size(); done += starts.size()) {
      const size_t length = unit(done, backwards);
      auto node_of = [&](size_t k) {
        return order_[backwards ? order_.size() - 1 - done - k : done + k];
      };
      starts.assign(length, zero);
      for (size_t k = 0; k < length; ++k) {
        const uint32_t node = node_of(k);
        const size_t d = joint_.index_of(node);
        const Instruction& each = joint_.plan(d).instructions[node - joint_.first[d]];
        join(starts[k], at_stream[streams[d] + each.stream]);
        if (d == device_ && backwards)
          result[node - joint_.first[d]] = starts[k];
        if (backwards && each.records)
          join(starts[k], at_event[events[d] + each.records.value]);
        if (!backwards)
          for (EventId event : each.waits)
            join(starts[k], at_event[events[d] + event.value]);
        if (d == device_ && !backwards)
          result[node - joint_.first[d]] = starts[k];
      }
      for (size_t k = 0; k < length; ++k) {
        const uint32_t node = node_of(k);
        const size_t d = joint_.index_of(node);
        const Instruction& each = joint_.plan(d).instructions[node - joint_.first[d]];
        Clock end = starts[k];
        if (is_collective(each.op))
          for (const Clock& other : starts)
            join(end, other);
        else if (k == 1) // of a transfer, which the other end comes before
          join(end, starts[0]);
        if (const Place& place = place_[node]; place.lane != kNone) {
          // A lane has come past a node once it is past those before it.
          const size_t entries = lanes_[place.lane].takes.size();
          uint32_t& clock = end[place.lane];
          if (clock == (backwards ? entries - 1 - place.position : place.position))
            ++clock;
        }
        at_stream[streams[d] + each.stream] = end;
        if (!backwards && each.records)
          at_event[events[d] + each.records.value] = end;
        if (backwards)
          for (EventId event : each.waits)
            join(at_event[events[d] + event.value], end);
      }
    }
    if (backwards)
      std::copy_n(at_stream.begin() + static_cast<ptrdiff_t>(streams[device_]),
                  plan_.streams.size(),
                  result.end() - static_cast<ptrdiff_t>(plan_.streams.size()));
    return result;
  }

  /// How many nodes end at one time: an instruction, the two ends of a transfer, a collective.
  size_t unit(size_t done, bool backwards) const {
    auto instruction = [&](size_t k) -> const Instruction& {
      return joint_.instruction(order_[backwards ? order_.size() - 1 - k : k]);
    };
    auto team = [&](size_t k) {
      const DeviceIndex device =
          joint_.devices[joint_.index_of(order_[backwards ? order_.size() - 1 - k : k])];
      return joint_.set.team_of(instruction(k), joint_.set.rank_in(instruction(k).group, device));
    };
    const Instruction& each = instruction(done);
    if (is_transfer(each.op))
      return 2;
    size_t length = 1;
    if (is_collective(each.op))
      while (done + length < order_.size() && is_collective(instruction(done + length).op) &&
             instruction(done + length).edge == each.edge && team(done + length) == team(done))
        ++length;
    return length;
  }

  const JointPlan& joint_;
  const std::vector<uint32_t>& order_; ///< in which all nodes may end
  const size_t device_;
  const Plan& plan_;
  std::vector<Place> place_; ///< of each node
  std::vector<Lane> lanes_;
};

} // namespace

Result<std::vector<MemoryBound>> bound_memory(const PlanSet& set, const ModelSpec& model,
                                              const MemoryCosts& costs) {
  PIPER_TRY(const JointPlan joint, verify_transfers(set, model));
  PIPER_TRY(const std::vector<uint32_t> order, verify_progress(joint));
  Sizes sizes(set, model, costs);
  std::vector<RoleBytes> of_role;
  for (const Plan& plan : set.plans)
    of_role.push_back(sizes.of(plan));

  const bool exhaustive = order.size() * joint.devices.size() <= kExhaustive;
  std::vector<bool> bounded(set.roles.size());
  std::vector<MemoryBound> bounds;
  for (size_t d = 0; d < joint.devices.size(); ++d) {
    const RoleId role = set.devices.at(joint.devices[d]);
    if (!exhaustive && bounded[role.value])
      continue;
    bounded[role.value] = true;
    MemoryBound bound{.device = joint.devices[d]};
    for (const Bucket& bucket : set.buckets) {
      if (set.rank_in(bucket.group, bound.device) < 0)
        continue;
      const int64_t bytes = bucket.numel * size_of(bucket.dtype);
      const int64_t ranks = set.groups[bucket.group.value].copies();
      const auto kept = [&](StateKind kind) {
        return is_sharded(bucket, kind) ? bytes / ranks : bytes;
      };
      bound.params += kept(StateKind::Param);
      if (set.kind != PlanKind::Train)
        continue;
      bound.gradients += kept(StateKind::Grad);
      bound.moments += costs.moments * kept(StateKind::Moment1);
    }
    const auto [instruction, live] = DeviceBound(joint, order, d, of_role[role.value]).run();
    bound.instruction = instruction;
    bound.values = live.values;
    bound.saved = live.saved;
    bound.working = live.working;
    bounds.push_back(bound);
  }
  return bounds;
}

Result<void> verify_memory(const PlanSet& set, const ModelSpec& model, const MemoryCosts& costs,
                           int64_t cap) {
  PIPER_TRY(const std::vector<MemoryBound> bounds, bound_memory(set, model, costs));
  for (const MemoryBound& bound : bounds) {
    if (bound.peak() <= cap)
      continue;
    const RoleId role = set.devices.at(bound.device);
    const auto& all = set.plans[role.value].instructions;
    Error error{ErrorKind::OutOfMemory,
                fmt::format("up to {} bytes may be live, the cap is {}: parameters {}, "
                            "gradients {}, moments {}, values {}, kept for later passes {}, "
                            "working {}",
                            bound.peak(), cap, bound.params, bound.gradients, bound.moments,
                            bound.values, bound.saved, bound.working),
                fmt::format("device {}", bound.device),
                "cut the batch into more microbatches, or spread the model over more devices"};
    if (!all.empty())
      error.where += ", " + wrong_instruction(set, role, all[bound.instruction], model, "").where;
    return error;
  }
  return {};
}

} // namespace piper::ir
