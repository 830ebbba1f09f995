#include "compiler/compile.h"

#include "ir/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace piper::compiler {

using namespace ir;

namespace {

/// Where a parameter is in a set of buckets.
struct Location {
  BucketId bucket;
  int64_t offset = 0;
};

std::vector<Location> locate(const PlanSet& plans, const ModelSpec& model) {
  std::vector<Location> locations(model.params.size());
  for (size_t b = 0; b < plans.buckets.size(); ++b)
    for (size_t i = 0; i < plans.buckets[b].params.size(); ++i)
      locations[plans.buckets[b].params[i].value] = {BucketId(b), plans.buckets[b].offsets[i]};
  return locations;
}

/// One piece of state on its way: `source` on device `from` becomes `target` on device `to`.
struct Move {
  DeviceIndex from, to;
  StateRange source, target;
};

class Mover {
public:
  Mover(const PlanSet& from, const PlanSet& to, const ModelSpec& model)
      : from_(from), to_(to), model_(model), old_(locate(from, model)), new_(locate(to, model)) {}

  std::vector<Move> moves(const std::vector<StateKind>& kinds) {
    for (size_t b = 0; b < to_.buckets.size(); ++b) {
      const Group& group = to_.groups[to_.buckets[b].group.value];
      for (StateKind kind : kinds)
        for (size_t rank = 0; rank < group.devices.size(); ++rank)
          fill(BucketId(b), kind, group.devices[rank], rank);
      for (uint32_t m = 0; m < to_.buckets[b].mirrors.size(); ++m)
        for (StateKind kind : kinds)
          for (size_t rank = 0; rank < group.devices.size(); ++rank)
            fill(BucketId(b), kind, to_.groups[to_.buckets[b].mirrors[m].value].devices[rank], rank,
                 m + 1);
    }
    return std::move(moves_);
  }

private:
  /// What `rank` of a bucket's group (or of a mirror) keeps of its array: all, or its shard.
  static ElementRange kept(const PlanSet& plans, const Bucket& bucket, StateKind kind, size_t rank,
                           uint32_t mirror) {
    if (!mirror && !is_sharded(bucket, kind))
      return {0, bucket.numel};
    return owned_range(bucket, plans.groups[bucket.group.value], static_cast<int>(rank));
  }

  /// What the device keeps as that rank of the bucket's group, or of its `mirror`-th mirror.
  void fill(BucketId id, StateKind kind, DeviceIndex device, size_t rank, uint32_t mirror = 0) {
    const Bucket& bucket = to_.buckets[id.value];
    if (kind == StateKind::Step) {
      const BucketId old = old_[bucket.params.front().value].bucket;
      const Group& group = from_.groups[from_.buckets[old.value].group.value];
      const uint32_t part =
          group.part(std::max(0, from_.rank_in(from_.buckets[old.value].group, device)));
      add(device, {to_.epoch, id, kind, 0, 1, mirror}, old, part, 0, 1);
      return;
    }
    const auto [begin, end] = kept(to_, bucket, kind, rank, mirror);
    const Group& group = to_.groups[bucket.group.value];
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const ModelParam& param = model_.param(bucket.params[i]);
      const int64_t numel = type_on(group, param).numel(0);
      const int64_t from = std::max(begin, bucket.offsets[i]);
      const int64_t until = std::min(end, bucket.offsets[i] + numel);
      if (from >= until)
        continue;
      // The element of the whole parameter, of which this rank may have a part.
      const int64_t element = group.part(static_cast<int>(rank)) * numel + from - bucket.offsets[i];
      add_elements(device, {to_.epoch, id, kind, from, until - from, mirror}, param,
                   old_[bucket.params[i].value], element);
    }
  }

  /// Splits where the old parts of the parameter end.
  void add_elements(DeviceIndex device, StateRange target, const ModelParam& param,
                    const Location& old, int64_t element) {
    const Group& group = from_.groups[from_.buckets[old.bucket.value].group.value];
    const int64_t numel = type_on(group, param).numel(0);
    for (int64_t left = target.count; left > 0; left -= target.count) {
      const int64_t part = element / numel;
      target.count = std::min(left, (part + 1) * numel - element);
      add(device, target, old.bucket, static_cast<uint32_t>(part),
          old.offset + element - part * numel, target.count);
      element += target.count;
      target.begin += target.count;
    }
  }

  /// Splits where the old owners change.
  void add(DeviceIndex device, StateRange target, BucketId old, uint32_t part, int64_t begin,
           int64_t count) {
    const Bucket& bucket = from_.buckets[old.value];
    const Group& group = from_.groups[bucket.group.value];
    const bool sharded = is_sharded(bucket, target.kind);
    const int64_t share = bucket.shard_numel();
    while (count > 0) {
      const int64_t shard = begin / share;
      const int64_t piece = sharded ? std::min(count, (shard + 1) * share - begin) : count;
      const DeviceIndex source = nearest_holder(group, device, [&](int rank) {
        return group.part(rank) == part && (!sharded || bucket.shard_of(group.copy(rank)) == shard);
      });
      push({source,
            device,
            {from_.epoch, old, target.kind, begin, piece},
            {target.epoch, target.bucket, target.kind, target.begin, piece, target.mirror}});
      begin += piece;
      target.begin += piece;
      count -= piece;
    }
  }

  /// Any rank that holds it will do: the device itself, or the nearest, and of several receivers
  /// each its own.
  template <class Holds>
  static DeviceIndex nearest_holder(const Group& group, DeviceIndex device, Holds holds) {
    std::optional<DeviceIndex> best;
    const auto key = [&](DeviceIndex d) {
      return std::pair(d > device ? d - device : device - d, d);
    };
    for (size_t rank = 0; rank < group.size(); ++rank)
      if (holds(static_cast<int>(rank)) && (!best || key(group.devices[rank]) < key(*best)))
        best = group.devices[rank];
    return *best;
  }

  /// Neighbours in both layouts move as one, the padding between them with it.
  void push(Move move) {
    if (!moves_.empty()) {
      Move& last = moves_.back();
      const int64_t gap = move.source.begin - last.source.begin - last.source.count;
      if (last.from == move.from && last.to == move.to && last.source.kind == move.source.kind &&
          last.source.bucket == move.source.bucket && last.target.bucket == move.target.bucket &&
          last.target.mirror == move.target.mirror && gap >= 0 && gap < kParamAlignment &&
          move.target.begin - last.target.begin - last.target.count == gap) {
        last.source.count += gap + move.source.count;
        last.target.count += gap + move.target.count;
        return;
      }
    }
    moves_.push_back(move);
  }

  const PlanSet& from_;
  const PlanSet& to_;
  const ModelSpec& model_;
  std::vector<Location> old_, new_;
  std::vector<Move> moves_;
};

} // namespace

Result<PlanSet> compile_migration(const PlanSet& from, const PlanSet& to, const ModelSpec& model,
                                  const std::vector<StateKind>& kinds) {
  if (from.model != to.model)
    return internal_error("state can only move between plans of one model");
  PlanSet plans;
  plans.kind = PlanKind::Migrate;
  plans.epoch = to.epoch;
  plans.model = to.model;
  plans.batch = to.batch;
  plans.buckets = to.buckets;
  plans.groups = to.groups;

  // A role a device: each has its own moves.
  std::map<DeviceIndex, RoleId> roles;
  auto plan_of = [&](DeviceIndex device) -> Plan& {
    auto [role, added] = roles.try_emplace(device, RoleId(plans.roles.size()));
    if (added) {
      plans.roles.push_back({fmt::format("device {}", device), {}});
      plans.plans.emplace_back();
    }
    return plans.plans[role->second.value];
  };
  auto emit = [](Plan& plan, const char* stream, Instruction instruction) {
    auto at = std::find(plan.streams.begin(), plan.streams.end(), stream);
    if (at == plan.streams.end())
      at = plan.streams.insert(at, stream);
    instruction.stream = static_cast<uint32_t>(at - plan.streams.begin());
    plan.instructions.push_back(std::move(instruction));
  };
  for (const Move& move : Mover(from, to, model).moves(kinds)) {
    Instruction instruction{.op = Opcode::CopyState, .source = move.source, .target = move.target};
    if (move.from == move.to) {
      emit(plan_of(move.to), "compute", std::move(instruction));
      continue;
    }
    instruction.edge = EdgeId(plans.edges.size());
    const std::string mirror =
        move.target.mirror ? fmt::format("mirror {} of ", move.target.mirror) : "";
    plans.edges.push_back(fmt::format("{} of {}{} [{}, +{}) from device {} to {}",
                                      ir::to_string(move.target.kind), mirror,
                                      to.buckets[move.target.bucket.value].name, move.target.begin,
                                      move.target.count, move.from, move.to));
    Instruction send = instruction;
    send.op = Opcode::SendState;
    send.device = move.to;
    emit(plan_of(move.from), "compute", std::move(send));
    instruction.op = Opcode::RecvState;
    instruction.device = move.from;
    emit(plan_of(move.to), "recv", std::move(instruction));
  }
  for (const auto& [device, role] : roles)
    plans.devices[device] = role;
  plans.world = to.world;
  if (auto verified = verify(plans, model); !verified.ok())
    return std::move(verified).error();
  return plans;
}

} // namespace piper::compiler
