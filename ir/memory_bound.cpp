#include "ir/memory_bound.h"

#include "ir/memory_layout.h"
#include "ir/verify_plan.h"

#include <fmt/ranges.h>

#include <map>
#include <utility>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;
/// Instructions of all devices times devices, beyond which roles stand for their devices.
constexpr size_t kExhaustive = 100'000'000;

/// Bytes by holder.
struct Bytes {
  int64_t values = 0, saved = 0, working = 0;
  Bytes& operator+=(const Bytes& other) {
    values += other.values;
    saved += other.saved;
    working += other.working;
    return *this;
  }
  int64_t sum() const { return values + saved + working; }
};

Bytes bytes_of(const Storage& storage, int64_t sign) {
  Bytes bytes;
  (storage.kind == Storage::Kind::Values  ? bytes.values
   : storage.kind == Storage::Kind::Saved ? bytes.saved
                                          : bytes.working) = sign * storage.bytes;
  return bytes;
}

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
              const std::vector<Storage>& storages)
      : joint_(joint), order_(order), device_(device), plan_(joint.plan(device)),
        storages_(storages), place_(joint.partner.size()), lanes_(plan_.streams.size()) {
    std::map<size_t, uint32_t> channels; // receiving device -> lane
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      const uint32_t node = joint.first[device] + i;
      enter(node, plan_.instructions[i].stream);
      if (plan_.instructions[i].op != Opcode::Send)
        continue;
      const uint32_t recv = joint.partner[node];
      auto [channel, fresh] =
          channels.try_emplace(joint.index_of(recv), static_cast<uint32_t>(lanes_.size()));
      if (fresh)
        lanes_.emplace_back();
      enter(recv, channel->second);
    }
  }

  struct Peak {
    uint32_t instruction = 0;
    Bytes live;
    std::map<uint32_t, int64_t> left_by; ///< bytes by the instruction that made them
  };

  /// The instruction at which most may be live, and what. Every moment lies between the starts of
  /// two neighbours on a stream; what may be live then is all that can begin before the second of
  /// them starts, but for what has ended for certain when the first does. The largest such sum over
  /// one stream is a bound, whichever the stream: the least of them is given.
  Peak run() const {
    const std::vector<Clock> ended = sweep(false), unbegun = sweep(true);
    Peak least;
    for (uint32_t s = 0; s < plan_.streams.size(); ++s) {
      std::vector<uint32_t> moments = {static_cast<uint32_t>(plan_.instructions.size() + s)};
      for (uint32_t i = 0; i < plan_.instructions.size(); ++i)
        if (plan_.instructions[i].stream == s)
          moments.push_back(i);
      const Peak peak = most_on(moments, ended, unbegun);
      if (s == 0 || peak.live.sum() < least.live.sum())
        least = peak;
    }
    return least;
  }

private:
  struct Place {
    uint32_t lane = kNone, position = 0;
  };

  void enter(uint32_t node, uint32_t lane) { place_[node] = {lane, lanes_[lane]++}; }

  const Place& place_of(uint32_t instruction, bool delivery) const {
    const uint32_t node = joint_.first[device_] + instruction;
    return place_[delivery ? joint_.partner[node] : node];
  }

  /// Both clocks only rise and fall from moment to moment, so that each storage may be live from
  /// one of them to another.
  Peak most_on(const std::vector<uint32_t>& moments, const std::vector<Clock>& ended,
               const std::vector<Clock>& unbegun) const {
    const auto count = static_cast<uint32_t>(moments.size());
    // Of each entry of each lane, the first moment at which it may have begun, or has ended.
    std::vector<std::vector<uint32_t>> begins, ends;
    for (size_t l = 0; l < lanes_.size(); ++l) {
      auto& begin = begins.emplace_back(lanes_[l], count);
      auto& end = ends.emplace_back(lanes_[l], count);
      uint32_t begun = 0, over = 0;
      for (uint32_t k = 0; k < count; ++k) {
        for (const uint32_t now = lanes_[l] - unbegun[moments[k]][l]; begun < now;)
          begin[begun++] = k;
        for (const uint32_t now = ended[moments[k]][l]; over < now;)
          end[over++] = k;
      }
    }
    std::vector<std::pair<uint32_t, uint32_t>> lives; // of each storage
    std::vector<Bytes> changes(count + 1);
    for (const Storage& storage : storages_) {
      const Place& made = place_of(storage.made, false);
      const uint32_t begin = begins[made.lane][made.position];
      uint32_t end = storage.drops.empty() ? count : 0;
      for (const Storage::Drop& drop : storage.drops) {
        const Place& place = place_of(drop.instruction, drop.delivery);
        end = std::max(end, ends[place.lane][place.position]);
      }
      lives.emplace_back(begin, std::max(begin, end));
      changes[lives.back().first] += bytes_of(storage, 1);
      changes[lives.back().second] += bytes_of(storage, -1);
    }
    Peak peak;
    Bytes live;
    uint32_t at = 0;
    for (uint32_t k = 0; k < count; ++k) {
      live += changes[k];
      if (k == 0 || live.sum() > peak.live.sum()) {
        peak.live = live;
        at = k;
      }
    }
    peak.instruction = at == 0 ? 0 : moments[at];
    for (size_t i = 0; i < storages_.size(); ++i)
      if (lives[i].first <= at && at < lives[i].second)
        peak.left_by[storages_[i].made] += storages_[i].bytes;
    return peak;
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
          const size_t entries = lanes_[place.lane];
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
      const Instruction& each = instruction(k);
      const uint32_t node = order_[backwards ? order_.size() - 1 - k : k];
      return joint_.set.team_of(
          each, joint_.set.rank_in(each.group, joint_.devices[joint_.index_of(node)]));
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
  const std::vector<Storage>& storages_;
  std::vector<Place> place_;    ///< of each node
  std::vector<uint32_t> lanes_; ///< how many entries each has
};

/// Adds what buckets and modules take of a device at all times. Gives what they take before the
/// first iteration: arrays are whole until they are cut into shards, and a module's own parameters
/// are there, maybe of two element types, until they are views of them.
int64_t add_state(MemoryBound& bound, const PlanSet& set, const ModelSpec& model, const Plan& plan,
                  const std::vector<StateKind>& kinds) {
  int64_t most = 0;
  for (const Bucket& bucket : set.buckets) {
    if (set.rank_in(bucket.group, bound.device) < 0)
      continue;
    const int64_t bytes = bucket.numel * size_of(bucket.dtype);
    const auto kept = [&](StateKind kind) {
      return is_sharded(bucket, kind) ? bytes / bucket.shards : bytes;
    };
    most = std::max(most, bound.peak() + 2 * bytes);
    if (!bucket.offload_params)
      bound.params += kept(StateKind::Param);
    bound.gradients += kept(StateKind::Grad);
    for (StateKind kind : kinds) {
      if ((kind == StateKind::Moment1 || kind == StateKind::Moment2) && !bucket.offload_optimizer)
        bound.moments += kept(kind);
      else if (kind == StateKind::Step)
        bound.moments += size_of(DType::F64);
    }
  }
  std::vector<bool> mirrored(model.params.size());
  for (const Bucket& bucket : set.buckets)
    for (GroupId mirror : bucket.mirrors) {
      if (set.rank_in(mirror, bound.device) < 0)
        continue;
      const int64_t bytes = bucket.shard_numel() * size_of(bucket.dtype);
      bound.mirrors += bucket.offload_params ? bytes : 2 * bytes; // parameters and gradients
      for (StateKind kind : kinds)
        if (kind == StateKind::Step)
          bound.mirrors += size_of(DType::F64);
        else if (kind != StateKind::Param && kind != StateKind::Grad && !bucket.offload_optimizer)
          bound.mirrors += bytes;
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
    of_role.push_back(storages_of(set, model, plan));

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
    const auto peak = DeviceBound(joint, order, d, of_role[role.value]).run();
    bound.instruction = peak.instruction;
    bound.values = peak.live.values;
    bound.saved = peak.live.saved;
    bound.working = peak.live.working;
    bound.largest = largest(peak.left_by, set, role, model);
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
