// A sharded array of a bucket is whole in windows alone: parameters from a Gather to a Release,
// gradients from a ZeroGrads to a ReduceScatter. Whatever needs it whole lies inside one, and one
// has ended before the next begins. Between windows there is no memory behind the views that
// modules and autograd hold, so that a use there would read freed memory.
#include "ir/verify_plan.h"

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

class WindowVerifier {
public:
  WindowVerifier(const RoleView& view, const StreamOrder& order, StateKind kind)
      : view_(view), set_(view.set), model_(view.facts.model), order_(order), kind_(kind),
        opens_(kind == StateKind::Param ? Opcode::Gather : Opcode::ZeroGrads),
        closes_(kind == StateKind::Param ? Opcode::Release : Opcode::ReduceScatter),
        buckets_(set_.buckets.size()) {}

  Result<void> run() {
    const auto& all = view_.plan.instructions;
    for (uint32_t i = 0; i < all.size(); ++i) {
      if (all[i].op == opens_)
        PIPER_CHECK_OK(open(i));
      else if (all[i].op == closes_ && is_sharded(bucket(i), kind_))
        PIPER_CHECK_OK(close(i));
      else if (is_compute(all[i].op))
        PIPER_CHECK_OK(use(i));
      else if (ends(all[i]))
        PIPER_CHECK_OK(end(i));
    }
    for (const Its& its : buckets_)
      if (its.open != kNone)
        return view_.wrong(all[its.open], "what it makes whole is never let go");
    return {};
  }

private:
  /// What is known of a bucket; indices of instructions.
  struct Its {
    uint32_t open = kNone, closed = kNone;
    std::vector<uint32_t> uses; ///< in the open window
  };

  const Instruction& at(uint32_t i) const { return view_.plan.instructions[i]; }
  const Bucket& bucket(uint32_t i) const { return set_.buckets[at(i).buckets[0].value]; }
  const char* what() const { return kind_ == StateKind::Param ? "parameters" : "gradients"; }

  Result<void> open(uint32_t i) {
    Its& its = buckets_[at(i).buckets[0].value];
    if (!is_sharded(bucket(i), kind_))
      return view_.wrong(
          at(i), fmt::format("the {} of bucket {} are not sharded", what(), bucket(i).name));
    if (its.open != kNone)
      return view_.wrong(at(i), fmt::format("{} has not ended", view_.name(its.open)));
    if (its.closed != kNone && !order_.before(its.closed, i))
      return view_.wrong(at(i), fmt::format("it may run before {}", view_.name(its.closed)));
    its = {.open = i};
    return {};
  }

  Result<void> close(uint32_t i) {
    Its& its = buckets_[at(i).buckets[0].value];
    if (its.open == kNone || !order_.before(its.open, i))
      return view_.wrong(at(i), fmt::format("the {} of bucket {} are not whole when it runs",
                                            what(), bucket(i).name));
    for (uint32_t use : its.uses)
      if (!order_.before(use, i))
        return view_.wrong(at(i), fmt::format("it may run before {} is done", view_.name(use)));
    its = {.closed = i};
    return {};
  }

  bool needs_whole(const Instruction& each, ParamId param) const {
    if (!is_sharded(set_.buckets[view_.facts.bucket[param.value].value], kind_))
      return false;
    if (kind_ == StateKind::Param)
      return true;
    // BackwardInput leaves all but those of one dimension to BackwardWeight.
    return adds_to_gradients(each.op) &&
           (each.op != Opcode::BackwardInput || model_.param(param).type.dims.size() <= 1);
  }

  Result<void> use(uint32_t i) {
    for (const auto& chunk : at(i).chunks)
      for (CallId call : chunk)
        for (ParamId param : model_.call(call).params) {
          if (!needs_whole(at(i), param))
            continue;
          const BucketId id = view_.facts.bucket[param.value];
          Its& its = buckets_[id.value];
          if (its.open == kNone || !order_.before(its.open, i))
            return view_.wrong(at(i), fmt::format("the {} of bucket {} are not whole when it runs",
                                                  what(), set_.buckets[id.value].name));
          if (its.uses.empty() || its.uses.back() != i)
            its.uses.push_back(i);
        }
    return {};
  }

  /// The sum over sub-groups, what sends gradients to mirrors, and the commit, or an update without
  /// it, come after all gradients; any update after all that reads its parameters.
  bool ends(const Instruction& each) const {
    if (each.op == Opcode::Update)
      return kind_ == StateKind::Param || set_.buckets[each.buckets[0].value].fused_update;
    return kind_ == StateKind::Grad && (each.op == Opcode::AllReduce ||
                                        each.op == Opcode::SendMirror || each.op == Opcode::Commit);
  }

  Result<void> end(uint32_t i) {
    for (BucketId id : at(i).buckets) {
      const Its& its = buckets_[id.value];
      if (its.open != kNone)
        return view_.wrong(at(i), fmt::format("{} has not ended", view_.name(its.open)));
      if (its.closed != kNone && !order_.before(its.closed, i))
        return view_.wrong(at(i), fmt::format("it may run before {}", view_.name(its.closed)));
    }
    return {};
  }

  const RoleView& view_;
  const PlanSet& set_;
  const ModelSpec& model_;
  const StreamOrder& order_;
  const StateKind kind_;
  const Opcode opens_, closes_;
  std::vector<Its> buckets_;
};

} // namespace

Result<void> verify_windows(const RoleView& view, const StreamOrder& order) {
  for (StateKind kind : {StateKind::Param, StateKind::Grad})
    PIPER_CHECK_OK(WindowVerifier(view, order, kind).run());
  return {};
}

} // namespace piper::ir
