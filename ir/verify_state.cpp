// The life of a bucket in an iteration, on every device that holds it:
//
//   forwards read its parameters; backwards read them and add to its gradients
//     -> the gradients are summed: each sub-group scatters the sums over its ranks (if the bucket
//        is sharded), then those who have the same shard, or all, add up theirs
//     -> those that the rank owns are sent to its mirrors, which have them before the commit
//     -> commit reads them (but of what is updated without it)
//     -> update writes the parameters that the rank owns, and clears the gradients; the mirrors'
//        too
//     -> the parameters are gathered in each sub-group (if only the optimizer's state is sharded)
//
// Each arrow is a wait on the device itself, so no two streams touch an array at a time, but for
// the backwards, which add in one order of their own.
#include "ir/verify_plan.h"

#include <map>
#include <tuple>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

class StateVerifier {
public:
  StateVerifier(const RoleView& view, const StreamOrder& order)
      : view_(view), set_(view.set), facts_(view.facts), order_(order),
        all_(view.plan.instructions), work_(set_.buckets.size()),
        last_adder_(facts_.model.params.size(), kNone) {
    for (size_t b = 0; b < work_.size(); ++b)
      work_[b].mirrors.resize(set_.buckets[b].mirrors.size());
  }

  Result<void> run() {
    for (uint32_t i = 0; i < all_.size(); ++i)
      PIPER_CHECK_OK(record(i));
    if (commit_ == kNone)
      return view_.wrong("the plan has no commit");
    PIPER_CHECK_OK(check_commit());
    for (size_t b = 0; b < set_.buckets.size(); ++b) {
      if (view_.is_member(set_.buckets[b].group))
        PIPER_CHECK_OK(check_bucket(set_.buckets[b], work_[b]));
      PIPER_CHECK_OK(check_mirrors(set_.buckets[b], work_[b]));
    }
    for (uint32_t i = 0; i < all_.size(); ++i)
      for (const auto& chunk : all_[i].chunks)
        for (CallId call : chunk)
          for (ParamId param : facts_.model.call(call).params)
            PIPER_CHECK_OK(check_use(i, param));
    return {};
  }

private:
  /// What is done to a bucket; indices of instructions.
  struct BucketWork {
    uint32_t scatter = kNone, sum = kNone, update = kNone, gather = kNone;
    struct Mirror {
      uint32_t send = kNone, recv = kNone, update = kNone;
    };
    std::vector<Mirror> mirrors;
    /// The first that reads its gradients, once they are complete here; none if the commit is that.
    uint32_t reduction() const { return scatter != kNone ? scatter : sum; }
  };

  Result<void> record(uint32_t i) {
    auto once = [&](uint32_t& done) -> Result<void> {
      if (done != kNone)
        return view_.wrong(all_[i], fmt::format("bucket {} has this done twice",
                                                set_.buckets[all_[i].buckets[0].value].name));
      done = i;
      return {};
    };
    switch (all_[i].op) {
    case Opcode::ReduceScatter:
      if (set_.buckets[all_[i].buckets[0].value].shard_grads)
        return {}; // once a window: see verify_windows
      return once(work_[all_[i].buckets[0].value].scatter);
    case Opcode::AllReduce:
      return once(work_[all_[i].buckets[0].value].sum);
    case Opcode::Update:
      return once(work_[all_[i].buckets[0].value].update);
    case Opcode::AllGather:
      return once(work_[all_[i].buckets[0].value].gather);
    case Opcode::SendMirror:
      return once(mirror(i, all_[i].group).send);
    case Opcode::RecvMirror:
      return once(mirror(i, all_[i].self).recv);
    case Opcode::UpdateMirror:
      return once(mirror(i, all_[i].self).update);
    case Opcode::Commit:
      if (commit_ != kNone)
        return view_.wrong(all_[i], "there are two commits");
      commit_ = i;
      return {};
    default:
      return {};
    }
  }

  BucketWork::Mirror& mirror(uint32_t i, GroupId on) {
    const BucketId bucket = all_[i].buckets[0];
    return work_[bucket.value].mirrors[mirror_on(set_.buckets[bucket.value], on)];
  }

  /// It counts the gradients of every bucket that the role holds, once; of those that are updated
  /// without it, which it may find cleared, none.
  Result<void> check_commit() const {
    std::vector<bool> counted(set_.buckets.size());
    for (BucketId bucket : all_[commit_].buckets) {
      if (set_.buckets[bucket.value].fused_update)
        return view_.wrong(all_[commit_], fmt::format("it counts bucket {}, whose update does not "
                                                      "wait for it",
                                                      set_.buckets[bucket.value].name));
      if (counted[bucket.value])
        return view_.wrong(all_[commit_], fmt::format("it counts bucket {} twice",
                                                      set_.buckets[bucket.value].name));
      counted[bucket.value] = true;
    }
    for (size_t b = 0; b < counted.size(); ++b)
      if (!counted[b] && view_.is_member(set_.buckets[b].group) && !set_.buckets[b].fused_update)
        return view_.wrong(all_[commit_],
                           fmt::format("it does not count bucket {}", set_.buckets[b].name));
    return {};
  }

  Result<void> check_bucket(const Bucket& bucket, const BucketWork& its) const {
    if (its.update == kNone)
      return view_.wrong(fmt::format("bucket {} is not updated", bucket.name));
    if (!bucket.fused_update && !order_.before(commit_, its.update))
      return view_.wrong(all_[its.update], "it may run before the commit");
    PIPER_CHECK_OK(check_reductions(bucket, its));
    if (bucket.shard_optimizer && !bucket.shard_params && its.gather == kNone)
      return view_.wrong(fmt::format("bucket {} is not gathered after its update", bucket.name));
    if (its.gather != kNone && !order_.before(its.update, its.gather))
      return view_.wrong(all_[its.gather], "it may run before the update");
    return {};
  }

  /// Those that its shards need, in order.
  Result<void> check_reductions(const Bucket& bucket, const BucketWork& its) const {
    const bool scatters = bucket.shards > 1 && !bucket.shard_grads;
    const bool sums = set_.groups[bucket.group.value].copies() > bucket.shards;
    for (const auto& [reduction, needed, name] :
         {std::tuple(its.scatter, scatters, "reduce-scatter"),
          std::tuple(its.sum, sums, "all-reduce")}) {
      if (reduction == kNone && needed)
        return view_.wrong(fmt::format("no {} sums the gradients of bucket {}", name, bucket.name));
      if (reduction != kNone && !needed)
        return view_.wrong(all_[reduction], fmt::format("{} copies of bucket {} in {} shards need "
                                                        "none",
                                                        set_.groups[bucket.group.value].copies(),
                                                        bucket.name, bucket.shards));
      if (reduction != kNone && !order_.before(reduction, commit_))
        return view_.wrong(all_[reduction], "the commit does not wait for it");
      if (reduction != kNone && !order_.before(reduction, its.update))
        return view_.wrong(all_[its.update], fmt::format("it may run before the {}", name));
    }
    if (scatters && sums && !order_.before(its.scatter, its.sum))
      return view_.wrong(all_[its.sum], "it may run before the reduce-scatter");
    return {};
  }

  /// The commit comes after a mirror has the gradients, and so, on all devices, do the updates:
  /// what is on its way does not change, and all updates of an iteration are done or none.
  Result<void> check_mirrors(const Bucket& bucket, const BucketWork& its) const {
    for (size_t m = 0; m < its.mirrors.size(); ++m) {
      const auto& mirror = its.mirrors[m];
      const uint32_t group = bucket.mirrors[m].value;
      if (view_.is_member(bucket.group)) {
        if (mirror.send == kNone)
          return view_.wrong(
              fmt::format("bucket {} is not sent to its mirror on g{}", bucket.name, group));
        for (const uint32_t reduction : {its.scatter, its.sum})
          if (reduction != kNone && !order_.before(reduction, mirror.send))
            return view_.wrong(all_[mirror.send],
                               fmt::format("it may run before {}", view_.name(reduction)));
        if (!order_.before(mirror.send, commit_))
          return view_.wrong(all_[mirror.send], "the commit does not wait for it");
      }
      if (!view_.is_member(bucket.mirrors[m]))
        continue;
      if (mirror.recv == kNone || mirror.update == kNone)
        return view_.wrong(
            fmt::format("the mirror of bucket {} on g{} {}", bucket.name, group,
                        mirror.recv == kNone ? "receives nothing" : "is not updated"));
      if (!order_.before(mirror.recv, commit_))
        return view_.wrong(all_[mirror.recv], "the commit does not wait for it");
      if (!order_.before(commit_, mirror.update))
        return view_.wrong(all_[mirror.update], "it may run before the commit");
    }
    return {};
  }

  /// A forward or a backward that uses a parameter.
  Result<void> check_use(uint32_t i, ParamId param) {
    const BucketId id = facts_.bucket[param.value];
    const Bucket& bucket = set_.buckets[id.value];
    const BucketWork& its = work_[id.value];
    if (!view_.is_member(bucket.group))
      return view_.wrong(all_[i], fmt::format("the role does not hold bucket {} of parameter {}",
                                              bucket.name, facts_.model.param(param).name));
    const Group &at = set_.groups[all_[i].self.value], &home = set_.groups[bucket.group.value];
    const Layout layout = home_of(at.layout, facts_.model.param(param));
    if (home.layout != layout || home.ways != at.ways)
      return view_.wrong(all_[i],
                         fmt::format("parameter {} is {} in blocks of {} there, but its bucket {} "
                                     "is for {} ones in blocks of {}",
                                     facts_.model.param(param).name, to_string(layout), at.ways,
                                     bucket.name, to_string(home.layout), home.ways));
    if (home.parts() > 1 && !same_pieces(all_[i].self, bucket.group))
      return view_.wrong(all_[i], fmt::format("ranks of g{} have other pieces of parameter {} in "
                                              "bucket {}",
                                              all_[i].self.value, facts_.model.param(param).name,
                                              bucket.name));
    if (goes_forward(all_[i].op)) {
      if (!order_.before(i, its.update)) // of sharded ones, also before they are let go
        return view_.wrong(all_[i],
                           fmt::format("{} does not wait for it, though it reads bucket {}",
                                       view_.name(its.update), bucket.name));
      return {};
    }
    const uint32_t end = its.reduction() != kNone ? its.reduction()
                         : bucket.fused_update    ? its.update
                                                  : commit_;
    if (!order_.before(i, end))
      return view_.wrong(all_[i],
                         fmt::format("{} does not wait for it, though it adds to bucket {}",
                                     view_.name(end), bucket.name));
    for (const auto& mirror : its.mirrors)
      if (!order_.before(i, mirror.send))
        return view_.wrong(all_[i],
                           fmt::format("{} does not wait for it, though it adds to bucket {}",
                                       view_.name(mirror.send), bucket.name));
    // Ordered in pairs, they are ordered all.
    uint32_t& last = last_adder_[param.value];
    if (last != kNone && last != i && !order_.before(last, i))
      return view_.wrong(all_[i],
                         fmt::format("it may add to the gradient of {} at the same time as "
                                     "{} on stream {}",
                                     facts_.model.param(param).name, view_.name(last),
                                     view_.plan.streams[all_[last].stream]));
    last = i;
    return {};
  }

  /// Whether each device of the role holds the piece of a cut parameter that its calls use.
  bool same_pieces(GroupId at, GroupId home) {
    const Group &uses = set_.groups[at.value], &holds = set_.groups[home.value];
    if (uses.devices == holds.devices)
      return true;
    const auto [known, fresh] = same_pieces_.try_emplace({at, home}, true);
    if (!fresh)
      return known->second;
    std::map<DeviceIndex, uint32_t> piece; // of each device that holds one
    for (size_t rank = 0; rank < holds.size(); ++rank)
      piece[holds.devices[rank]] = holds.part(static_cast<int>(rank));
    for (size_t rank = 0; rank < uses.size(); ++rank)
      if (set_.role_of(uses.devices[rank]) == view_.id)
        known->second &= piece.at(uses.devices[rank]) == rank % uses.ways;
    return known->second;
  }

  const RoleView& view_;
  const PlanSet& set_;
  const ModelFacts& facts_;
  const StreamOrder& order_;
  const std::vector<Instruction>& all_;
  std::vector<BucketWork> work_;
  uint32_t commit_ = kNone;
  std::vector<uint32_t> last_adder_;                        ///< to each parameter's gradient
  std::map<std::pair<GroupId, GroupId>, bool> same_pieces_; ///< by user and holder
};

} // namespace

Result<void> verify_state(const RoleView& view, const StreamOrder& order) {
  return StateVerifier(view, order).run();
}

} // namespace piper::ir
