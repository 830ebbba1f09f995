// The gradient of every value is complete where it is used. A value's gradient is the sum of what
// its readers' backwards give; each slot that is named as a gradient, whole or part, stands for the
// readers whose contributions it sums, and that set follows from the instruction that made it. The
// backward of the call that made the value must see each reader exactly once: inside itself, where
// it holds readers too, or in what it reads. By induction from the seed, d(loss)/d(value) is exact,
// and so is what each backward adds to its parameters' gradients.
#include "ir/hash.h"
#include "ir/verify_plan.h"

#include <cmath>
#include <unordered_map>

namespace piper::ir {

namespace {

class GradientVerifier {
public:
  explicit GradientVerifier(const std::vector<RoleView>& roles)
      : roles_(roles), facts_(roles.front().facts), model_(facts_.model),
        here_(model_.calls.size()) {}

  Result<void> run() {
    for (const RoleView& role : roles_)
      for (const Instruction& each : role.plan.instructions)
        if (each.op == Opcode::Seed)
          PIPER_CHECK_OK(check_seed(role, each));
        else if (goes_backward(each.op))
          PIPER_CHECK_OK(note_parts(role, each));
    for (const RoleView& role : roles_)
      for (const Instruction& each : role.plan.instructions)
        if (each.op == Opcode::Add)
          PIPER_CHECK_OK(note_sum(role, each));
    for (const RoleView& role : roles_)
      for (const Instruction& each : role.plan.instructions)
        if (goes_backward(each.op))
          PIPER_CHECK_OK(check_backward(role, each));
    return {};
  }

private:
  using Calls = std::vector<CallId>; ///< readers of one value, ascending

  /// Microbatches and replicas are means over rows: together the losses are the mean over the
  /// batch.
  Result<void> check_seed(const RoleView& role, const Instruction& each) const {
    const int64_t parts = role.set.microbatches * replicas(role.set, each.self);
    const double right = 1.0 / static_cast<double>(parts);
    if (std::abs(each.scale - right) > 1e-12 * right)
      return role.wrong(each,
                        fmt::format("its scale is {}, but {} microbatches on {} replicas make "
                                    "it {}",
                                    each.scale, role.set.microbatches,
                                    replicas(role.set, each.self), right));
    return {};
  }

  /// The name of a gradient wherever it is: what it stands for does not depend on the place, as a
  /// call has one place and copies keep the name.
  static ValueRef anywhere(ValueRef ref) {
    ref.at = {};
    return ref;
  }

  Result<void> note(const RoleView& role, const Instruction& each, const ValueRef& ref,
                    Calls readers) {
    auto [known, fresh] = sums_.try_emplace(anywhere(ref), std::move(readers));
    if (!fresh && known->second != readers)
      return role.wrong(each,
                        fmt::format("{} has another meaning elsewhere: {} here, {} there",
                                    role.value_name(ref), names(readers), names(known->second)));
    return {};
  }

  std::string names(const Calls& calls) const {
    std::string out = "the parts of";
    for (CallId call : calls)
      out += " " + model_.call(call).name;
    return calls.empty() ? "no parts" : out;
  }

  /// Marks the calls of a backward as `here`.
  void enter(const Instruction& each) {
    ++now_;
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk)
        here_[call.value] = now_;
  }
  /// The readers of a value that the entered backward holds.
  Calls inside(ValueId value) const {
    Calls calls;
    for (CallId reader : facts_.readers[value.value])
      if (here_[reader.value] == now_)
        calls.push_back(reader);
    return calls;
  }

  /// What a backward writes stands for the readers that it holds. A value with one reader needs no
  /// note: whatever is named as its gradient is that reader's.
  Result<void> note_parts(const RoleView& role, const Instruction& each) {
    enter(each);
    for (SlotId slot : each.outputs) {
      if (!slot || role.plan.slots[slot.value].value.kind == ValueKind::Deferred)
        continue;
      const ValueRef& ref = role.plan.slots[slot.value].value;
      if (facts_.readers[ref.subject].size() > 1)
        PIPER_CHECK_OK(note(role, each, ref, inside(ValueId(ref.subject))));
    }
    return {};
  }

  Result<void> note_sum(const RoleView& role, const Instruction& each) {
    Calls readers;
    for (SlotId slot : each.inputs)
      PIPER_CHECK_OK(append(role, each, role.plan.slots[slot.value].value, readers));
    std::sort(readers.begin(), readers.end());
    return note(role, each, role.plan.slots[each.outputs[0].value].value, std::move(readers));
  }

  /// Adds the readers that a gradient stands for.
  Result<void> append(const RoleView& role, const Instruction& each, const ValueRef& ref,
                      Calls& readers) const {
    const Calls& all = facts_.readers[ref.subject];
    if (all.size() == 1) {
      readers.push_back(all[0]);
      return {};
    }
    const auto known = sums_.find(anywhere(ref));
    if (known == sums_.end())
      return role.wrong(each, fmt::format("no backward makes {}", role.value_name(ref)));
    readers.insert(readers.end(), known->second.begin(), known->second.end());
    return {};
  }

  Result<void> check_backward(const RoleView& role, const Instruction& each) {
    enter(each);
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk)
        if (facts_.backward[call.value])
          for (ValueId value : model_.call(call).outputs)
            PIPER_CHECK_OK(check_complete(role, each, value));
    return {};
  }

  /// Every reader counts once. The gradient of the loss is the seed, read once.
  Result<void> check_complete(const RoleView& role, const Instruction& each, ValueId value) const {
    Calls readers = inside(value);
    size_t seeds = 0;
    for (size_t i = each.chunks.size(); i < each.inputs.size(); ++i) {
      const ValueRef& ref = role.plan.slots[each.inputs[i].value].value;
      if (ref.subject != value.value)
        continue;
      if (value == model_.loss)
        ++seeds;
      else
        PIPER_CHECK_OK(append(role, each, ref, readers));
    }
    if (value == model_.loss && seeds != 1)
      return role.wrong(each, fmt::format("it reads {} seeds, one is right", seeds));
    std::sort(readers.begin(), readers.end());
    const Calls& right = facts_.readers[value.value];
    if (readers != right)
      return role.wrong(each, fmt::format("its gradient of {} is the sum of {}, not of {}",
                                          model_.value(value).name, names(readers), names(right)));
    return {};
  }

  const std::vector<RoleView>& roles_;
  const ModelFacts& facts_;
  const ModelSpec& model_;
  std::unordered_map<ValueRef, Calls, IdHash>
      sums_;                   ///< of gradients of values with several readers
  std::vector<uint32_t> here_; ///< of each call, the last backward with it
  uint32_t now_ = 0;
};

} // namespace

Result<void> verify_gradients(const std::vector<RoleView>& roles) {
  return roles.empty() ? Result<void>() : GradientVerifier(roles).run();
}

} // namespace piper::ir
