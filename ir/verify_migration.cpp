// A migration fills every array that it moves: on each device, all of a kind's elements that hold a
// parameter and that the device keeps, for itself or as a mirror, are written, none of them twice.
#include "ir/verify_plan.h"

#include <array>
#include <map>
#include <tuple>

namespace piper::ir {

namespace {

/// The group that keeps a bucket, or a mirror of it.
GroupId keepers(const Bucket& bucket, uint32_t mirror) {
  return mirror ? bucket.mirrors[mirror - 1] : bucket.group;
}

/// What the device keeps of a bucket's array: all, or its shard where it is sharded or mirrored.
ElementRange kept(const PlanSet& set, const Bucket& bucket, StateKind kind, DeviceIndex device,
                  uint32_t mirror) {
  if (kind == StateKind::Step)
    return {0, 1};
  if (!mirror && !is_sharded(bucket, kind))
    return {0, bucket.numel};
  return owned_range(bucket, set.groups[bucket.group.value],
                     set.rank_in(keepers(bucket, mirror), device));
}

struct Written {
  int64_t begin, end;
  const Instruction* by;
};
using Array = std::tuple<DeviceIndex, BucketId, uint32_t, StateKind>; ///< with the mirror

class MigrationVerifier {
public:
  MigrationVerifier(const PlanSet& set, const ModelSpec& model) : set_(set), model_(model) {}

  Result<void> run() {
    for (const auto& [device, role] : set_.devices)
      for (const Instruction& each : set_.plans[role.value].instructions)
        PIPER_CHECK_OK(note(device, each));
    for (auto& [array, pieces] : written_) {
      std::sort(pieces.begin(), pieces.end(),
                [](const Written& a, const Written& b) { return a.begin < b.begin; });
      for (size_t i = 1; i < pieces.size(); ++i)
        if (pieces[i].begin < pieces[i - 1].end)
          return wrong(std::get<0>(array), *pieces[i].by,
                       fmt::format("{} writes elements of it too",
                                   name(std::get<0>(array), *pieces[i - 1].by)));
    }
    return complete();
  }

private:
  std::string name(DeviceIndex device, const Instruction& each) const {
    return set_.name(set_.devices.at(device), each, &model_);
  }
  Error wrong(DeviceIndex device, const Instruction& each, std::string message) const {
    Error error =
        wrong_instruction(set_, set_.devices.at(device), each, model_, std::move(message));
    error.where = fmt::format("device {}, {}", device, error.where);
    return error;
  }

  Result<void> note(DeviceIndex device, const Instruction& each) {
    const StateRange &from = each.source, &to = each.target;
    if (from.kind != to.kind || from.count != to.count)
      return wrong(device, each, "it moves a range to one of another kind or size");
    if (to.epoch != set_.epoch || from.epoch == set_.epoch)
      return wrong(device, each,
                   fmt::format("it moves state of epoch {} to epoch {}", from.epoch, to.epoch));
    kinds_[static_cast<size_t>(to.kind)] = true;
    if (each.op == Opcode::SendState)
      return {};
    if (to.bucket.value >= set_.buckets.size() ||
        to.mirror > set_.buckets[to.bucket.value].mirrors.size() ||
        set_.rank_in(keepers(set_.buckets[to.bucket.value], to.mirror), device) < 0)
      return wrong(device, each,
                   fmt::format("the device does not hold {}bucket {}",
                               to.mirror ? fmt::format("mirror {} of ", to.mirror) : "",
                               to.bucket.value));
    const auto [begin, end] = kept(set_, set_.buckets[to.bucket.value], to.kind, device, to.mirror);
    if (to.count <= 0 || to.begin < begin || to.begin + to.count > end)
      return wrong(device, each,
                   fmt::format("the device keeps elements [{}, {}) of the array", begin, end));
    written_[{device, to.bucket, to.mirror, to.kind}].push_back(
        {to.begin, to.begin + to.count, &each});
    return {};
  }

  Result<void> complete() const {
    for (uint32_t b = 0; b < set_.buckets.size(); ++b)
      for (uint32_t mirror = 0; mirror <= set_.buckets[b].mirrors.size(); ++mirror)
        for (DeviceIndex device : set_.groups[keepers(set_.buckets[b], mirror).value].devices)
          for (size_t k = 0; k < kinds_.size(); ++k)
            if (kinds_[k])
              PIPER_CHECK_OK(check_filled(device, BucketId(b), mirror, static_cast<StateKind>(k)));
    return {};
  }

  Result<void> check_filled(DeviceIndex device, BucketId id, uint32_t mirror,
                            StateKind kind) const {
    const Bucket& bucket = set_.buckets[id.value];
    const auto [begin, end] = kept(set_, bucket, kind, device, mirror);
    static const std::vector<Written> kNothing;
    const auto found = written_.find({device, id, mirror, kind});
    const auto& pieces = found == written_.end() ? kNothing : found->second;
    size_t piece = 0;
    for (size_t p = 0; p < bucket.params.size(); ++p) {
      int64_t at = std::max(begin, bucket.offsets[p]);
      const int64_t numel =
          type_on(set_.groups[bucket.group.value], model_.param(bucket.params[p])).numel(0);
      int64_t until = std::min(end, bucket.offsets[p] + numel);
      if (kind == StateKind::Step)
        at = 0, until = 1;
      while (at < until) {
        while (piece < pieces.size() && pieces[piece].end <= at)
          ++piece;
        if (piece == pieces.size() || pieces[piece].begin > at)
          return wrong_set(
              set_, fmt::format("nothing fills element {} of {} of {}bucket {} on device {}", at,
                                to_string(kind), mirror ? fmt::format("mirror {} of ", mirror) : "",
                                bucket.name, device));
        at = pieces[piece].end;
      }
      if (kind == StateKind::Step)
        break;
    }
    return {};
  }

  const PlanSet& set_;
  const ModelSpec& model_;
  std::map<Array, std::vector<Written>> written_;
  std::array<bool, 5> kinds_{}; ///< that the migration moves
};

} // namespace

Result<void> verify_migration(const PlanSet& set, const ModelSpec& model) {
  return MigrationVerifier(set, model).run();
}

} // namespace piper::ir
