// Every slot holds what its name says. By induction over the order in which slots are written: if
// what an instruction reads holds what it says, so does what it writes. A transfer keeps the name
// (verify_transfers), so this carries over to all devices.
#include "ir/verify_plan.h"

#include <map>

namespace piper::ir {

namespace {

class ValueVerifier {
public:
  explicit ValueVerifier(const RoleView& view)
      : view_(view), set_(view.set), model_(view.facts.model), made_(model_.values.size()),
        needed_(model_.values.size()), given_(model_.values.size()) {}

  Result<void> run() {
    std::vector<bool> used(view_.plan.slots.size());
    for (const Instruction& each : view_.plan.instructions)
      for (SlotId slot : each.outputs)
        if (slot)
          used[slot.value] = true;
    for (uint32_t s = 0; s < used.size(); ++s)
      if (used[s])
        PIPER_CHECK_OK(check_slot(SlotId(s)));
    for (const Instruction& each : view_.plan.instructions) {
      ++now_;
      PIPER_CHECK_OK(check(each));
    }
    return {};
  }

private:
  const ValueRef& ref(SlotId slot) const { return view_.plan.slots[slot.value].value; }

  Result<void> check_slot(SlotId slot) const {
    const Slot& its = view_.plan.slots[slot.value];
    const ValueKind kind = its.value.kind;
    if (is_movable(kind) && its.value.part != CallId::kNone && its.value.part > kFetched)
      return view_.wrong(fmt::format("slot s{} is in no memory", slot.value));
    const size_t subjects = is_kept(kind) ? model_.calls.size() : model_.values.size();
    if (kind > ValueKind::Deferred || its.value.subject >= subjects)
      return view_.wrong(fmt::format("slot s{} is for what does not exist", slot.value));
    if (its.value.at.value >= set_.groups.size())
      return view_.wrong(fmt::format("slot s{} is for a value at no place", slot.value));
    if (is_kept(kind))
      return {};
    const Group& at = group(its.value.at);
    const TensorType& whole = model_.values[its.value.subject].type;
    if (at.layout == Layout::Tokens && (whole.dims.size() < 2 || whole.dims[1] % at.ways != 0))
      return view_.wrong(fmt::format("{} is {}: its tokens do not make {} pieces",
                                     view_.slot_name(slot), whole.to_string(), at.ways));
    const TensorType type = type_on(at, model_.values[its.value.subject]);
    if (its.type != type)
      return view_.wrong(fmt::format("{} is of type {}, the model's is {}", view_.slot_name(slot),
                                     its.type.to_string(), type.to_string()));
    return {};
  }

  const Group& group(GroupId id) const { return set_.groups[id.value]; }

  /// Whether the ranks of two groups work on the same rows in the same blocks, on every device of
  /// the role: a transfer within a device is left out.
  bool same_ranks(GroupId at, GroupId self) {
    if (at == self)
      return true;
    auto [known, fresh] = same_ranks_.try_emplace({at, self}, false);
    if (fresh && replicas(set_, at) == replicas(set_, self) && group(at).ways == group(self).ways) {
      const auto &a = group(at).devices, &b = group(self).devices;
      known->second = a.size() == b.size();
      for (size_t i = 0; known->second && i < a.size(); ++i)
        if (set_.role_of(a[i]) == view_.id || set_.role_of(b[i]) == view_.id)
          known->second = a[i] == b[i];
    }
    return known->second;
  }
  /// What is on group `at` is what a rank of `self` has in the layout of `self`.
  bool same_place(GroupId at, GroupId self) {
    return group(at).layout == group(self).layout && same_ranks(at, self);
  }

  /// The slot is named as one of the instruction's microbatch and place.
  Result<void> check_place(const Instruction& each, SlotId slot, bool is_read) {
    const ValueRef& its = ref(slot);
    if (its.microbatch != each.microbatch)
      return view_.wrong(each, fmt::format("{} is of another microbatch", view_.slot_name(slot)));
    // A call may read and make values in another layout than its own.
    const Layout self = group(each.self).layout;
    Layout right = self;
    if (is_compute(each.op) && !is_kept(its.kind))
      right = is_read ? reads(self) : makes(self);
    const bool same =
        is_read || right != self ? same_ranks(its.at, each.self) : its.at == each.self;
    if (each.op == Opcode::Redistribute && is_read)
      return {}; // at one of its ends: see check_redistribute
    if (!same)
      return view_.wrong(each, fmt::format("{} is of another place", view_.slot_name(slot)));
    if (group(its.at).layout != right)
      return view_.wrong(each, fmt::format("{} is {} there, not {}", view_.slot_name(slot),
                                           to_string(group(its.at).layout), to_string(right)));
    return {};
  }
  /// What has no other layout.
  Result<void> check_whole(const Instruction& each) const {
    if (group(each.self).layout == Layout::Whole)
      return {};
    return view_.wrong(each, fmt::format("what it works on is whole, but g{} is {}",
                                         each.self.value, to_string(group(each.self).layout)));
  }

  /// The value itself, and where its rows are told apart by expert, the counts at both ends.
  Result<void> check_redistribute(const Instruction& each) {
    const Move move = *move_between(set_.groups[each.group.value], set_.groups[each.self.value]);
    if (each.inputs.empty() || each.outputs.size() != 1)
      return view_.wrong(each, "it moves one value");
    ValueRef moved = ref(each.inputs[0]);
    if (!same_place(moved.at, each.group))
      return view_.wrong(each, fmt::format("{} is not on g{}, where it comes from",
                                           view_.slot_name(each.inputs[0]), each.group.value));
    moved.at = each.self;
    if (is_kept(moved.kind) || moved != ref(each.outputs[0]))
      return wrong_slot(each, each.outputs[0], "the value that it moves");
    const ModelValue& value = model_.values[moved.subject];
    if (move != Move::AllToAll || value.is_counts)
      return check_counts(each, 1, 1);
    PIPER_CHECK_OK(check_counts(each, 3, 1));
    const ValueRef &source = ref(each.inputs[1]), &target = ref(each.inputs[2]);
    const ValueId counts = counts_of(ValueId(moved.subject));
    for (const auto& [its, at] : {std::pair(source, each.group), {target, each.self}})
      if (its.kind != ValueKind::Activation || !counts || its.subject != counts.value ||
          !same_place(its.at, at))
        return view_.wrong(
            each, fmt::format("it does not read the counts of {} at both ends", value.name));
    return {};
  }

  /// Its outputs are its inputs, in another memory.
  Result<void> check_moved(const Instruction& each, uint32_t from, uint32_t to) const {
    PIPER_CHECK_OK(check_counts(each, std::max<size_t>(each.inputs.size(), 1), each.inputs.size()));
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      ValueRef moved = ref(each.inputs[i]);
      if (!is_movable(moved.kind) || moved.part != from)
        return wrong_slot(each, each.inputs[i], "where it moves values from");
      moved.part = to;
      moved.at = ref(each.outputs[i]).at;
      if (moved != ref(each.outputs[i]))
        return wrong_slot(each, each.outputs[i], "the value that it moves");
    }
    return {};
  }

  /// Of a value that a call with experts reads or makes.
  ValueId counts_of(ValueId value) const {
    for (const ModelCall& call : model_.calls)
      if (call.counts)
        for (const auto* list : {&call.inputs, &call.outputs})
          if (std::find(list->begin(), list->end(), value) != list->end())
            return call.counts;
    return {};
  }
  Result<void> check_counts(const Instruction& each, size_t inputs, size_t outputs) const {
    if (each.inputs.size() != inputs || each.outputs.size() != outputs)
      return view_.wrong(each,
                         fmt::format("it reads {} and writes {} slots, not {} and {}",
                                     each.inputs.size(), each.outputs.size(), inputs, outputs));
    return {};
  }
  Error wrong_slot(const Instruction& each, SlotId slot, const char* wanted) const {
    return view_.wrong(each, fmt::format("{} is not {}", view_.slot_name(slot), wanted));
  }
  bool is(SlotId slot, ValueKind kind, ValueId value) const {
    return ref(slot).kind == kind && ref(slot).subject == value.value;
  }

  Result<void> check(const Instruction& each) {
    for (SlotId slot : each.inputs) {
      PIPER_CHECK_OK(check_place(each, slot, true));
      if (is_movable(ref(slot).kind) && ref(slot).part == kInPool && each.op != Opcode::Fetch)
        return wrong_slot(each, slot, "in the device's memory");
    }
    for (SlotId slot : each.outputs)
      if (slot && is_movable(ref(slot).kind) && ref(slot).part != CallId::kNone &&
          each.op != Opcode::Offload && each.op != Opcode::Fetch)
        return wrong_slot(each, slot, "where what it makes is");
      else if (slot)
        PIPER_CHECK_OK(check_place(each, slot, false));
      else if (each.op != Opcode::Forward && each.op != Opcode::Recompute &&
               each.op != Opcode::BackwardInput)
        return view_.wrong(each, "it writes to no slot");
    switch (each.op) {
    case Opcode::Input:
      PIPER_CHECK_OK(check_whole(each));
      PIPER_CHECK_OK(check_counts(each, 0, 1));
      if (ref(each.outputs[0]).kind != ValueKind::Activation ||
          model_.values[ref(each.outputs[0]).subject].producer)
        return wrong_slot(each, each.outputs[0], "an input of the model");
      return {};
    case Opcode::Forward:
    case Opcode::Recompute:
      return check_forward(each);
    case Opcode::Seed:
      PIPER_CHECK_OK(check_whole(each));
      PIPER_CHECK_OK(check_counts(each, 0, 1));
      if (!is(each.outputs[0], ValueKind::Gradient, model_.loss))
        return wrong_slot(each, each.outputs[0], "the gradient of the loss");
      return {};
    case Opcode::Backward:
    case Opcode::BackwardInput:
      return check_backward(each);
    case Opcode::BackwardWeight:
      PIPER_CHECK_OK(check_counts(each, each.chunks.size(), 0));
      return check_kept_inputs(each, ValueKind::Deferred, "the backward for inputs left");
    case Opcode::Add:
      return check_add(each);
    case Opcode::Loss:
      PIPER_CHECK_OK(check_whole(each));
      PIPER_CHECK_OK(check_counts(each, 1, 0));
      if (!is(each.inputs[0], ValueKind::Activation, model_.loss))
        return wrong_slot(each, each.inputs[0], "the loss");
      return {};
    case Opcode::Send:
    case Opcode::Recv: {
      const bool sends = each.op == Opcode::Send;
      PIPER_CHECK_OK(check_counts(each, sends, !sends));
      const SlotId slot = sends ? each.inputs[0] : each.outputs[0];
      if (is_kept(ref(slot).kind))
        return wrong_slot(each, slot, "a tensor: it cannot travel");
      return {};
    }
    case Opcode::Redistribute:
      return check_redistribute(each);
    case Opcode::Offload:
      return check_moved(each, CallId::kNone, kInPool);
    case Opcode::Fetch:
      return check_moved(each, kInPool, kFetched);
    default:
      return check_counts(each, 0, 0);
    }
  }

  bool has_weights(const std::vector<CallId>& chunk) const {
    return std::any_of(chunk.begin(), chunk.end(), [&](CallId call) {
      return view_.facts.backward[call.value] && !model_.call(call).params.empty();
    });
  }

  /// It begins with what each of its chunks left for it.
  Result<void> check_kept_inputs(const Instruction& each, ValueKind kind, const char* what) const {
    for (size_t c = 0; c < each.chunks.size(); ++c)
      if (c >= each.inputs.size() || ref(each.inputs[c]).kind != kind ||
          ref(each.inputs[c]).subject != each.chunks[c].front().value)
        return view_.wrong(each, fmt::format("it does not begin with what {}", what));
    return {};
  }
  /// It begins with a slot for what each chunk keeps; none for a chunk that need not.
  template <class Needed>
  Result<void> check_kept_outputs(const Instruction& each, ValueKind kind, Needed needed) const {
    if (each.outputs.size() < each.chunks.size())
      return view_.wrong(each, "it has fewer slots than chunks for what these keep");
    for (size_t c = 0; c < each.chunks.size(); ++c) {
      const SlotId slot = each.outputs[c];
      if (!slot && needed(each.chunks[c]))
        return view_.wrong(each, fmt::format("chunk {} keeps nothing for a later pass", c));
      if (slot && (ref(slot).kind != kind || ref(slot).subject != each.chunks[c].front().value))
        return wrong_slot(each, slot, "what its chunk keeps");
    }
    return {};
  }

  /// Reads what its calls read of others, once each; writes what the chunks save and some of what
  /// its calls make.
  Result<void> check_forward(const Instruction& each) {
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk) {
        for (ValueId v : model_.call(call).inputs)
          if (made_[v.value] != now_)
            needed_[v.value] = now_;
        for (ValueId v : model_.call(call).outputs)
          made_[v.value] = now_;
      }
    for (SlotId slot : each.inputs) {
      const ValueRef& its = ref(slot);
      if (its.kind != ValueKind::Activation || needed_[its.subject] != now_)
        return wrong_slot(each, slot, "what its calls read");
      needed_[its.subject] = 0;
    }
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk)
        for (ValueId v : model_.call(call).inputs)
          if (needed_[v.value] == now_)
            return view_.wrong(each, fmt::format("it does not read {}, which call {} needs",
                                                 model_.value(v).name, model_.call(call).name));

    const size_t saved = set_.kind == PlanKind::Train ? each.chunks.size() : 0;
    // What a forward does not keep, a recompute does, or verify_calls refuses the backward.
    const bool again = each.op == Opcode::Recompute;
    if (saved)
      PIPER_CHECK_OK(
          check_kept_outputs(each, ValueKind::Saved, [&](const auto&) { return again; }));
    if (again)
      PIPER_CHECK_OK(check_counts(each, each.inputs.size(), saved));
    for (size_t i = saved; i < each.outputs.size(); ++i) {
      if (!each.outputs[i])
        return view_.wrong(each, "it writes to no slot");
      const ValueRef& its = ref(each.outputs[i]);
      if (its.kind != ValueKind::Activation || made_[its.subject] != now_)
        return wrong_slot(each, each.outputs[i], "what its calls make");
      made_[its.subject] = 0;
    }
    return {};
  }

  /// Reads what its chunks saved and gradients of what they make; writes gradients of what they
  /// read. Whether the gradients are complete is for verify_gradients.
  Result<void> check_backward(const Instruction& each) {
    const size_t saved = each.chunks.size();
    PIPER_CHECK_OK(
        check_kept_inputs(each, ValueKind::Saved, "the forward of its microbatch saved"));
    const bool defers = each.op == Opcode::BackwardInput;
    if (defers)
      PIPER_CHECK_OK(check_kept_outputs(each, ValueKind::Deferred,
                                        [&](const auto& chunk) { return has_weights(chunk); }));
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk) {
        for (ValueId v : model_.call(call).outputs)
          made_[v.value] = now_;
        if (view_.facts.backward[call.value])
          for (ValueId v : model_.call(call).inputs)
            needed_[v.value] = now_;
      }
    for (size_t i = saved; i < each.inputs.size(); ++i) {
      const ValueRef& its = ref(each.inputs[i]);
      if ((its.kind != ValueKind::Gradient && its.kind != ValueKind::GradientPart) ||
          made_[its.subject] != now_)
        return wrong_slot(each, each.inputs[i], "the gradient of what its calls make");
    }
    for (size_t i = defers ? saved : 0; i < each.outputs.size(); ++i) {
      const SlotId slot = each.outputs[i];
      if (!slot)
        return view_.wrong(each, "it writes to no slot");
      const ValueRef& its = ref(slot);
      if ((its.kind != ValueKind::Gradient && its.kind != ValueKind::GradientPart) ||
          needed_[its.subject] != now_ || made_[its.subject] == now_ ||
          !model_.values[its.subject].differentiable)
        return wrong_slot(each, slot, "the gradient of what its calls read of others");
      if (given_[its.subject] == now_)
        return view_.wrong(each, fmt::format("it writes the gradient of {} twice",
                                             model_.values[its.subject].name));
      given_[its.subject] = now_;
    }
    return {};
  }

  Result<void> check_add(const Instruction& each) {
    if (each.inputs.empty() || each.outputs.size() != 1)
      return view_.wrong(each, "it sums several slots into one");
    const ValueRef& sum = ref(each.outputs[0]);
    if (sum.kind != ValueKind::Gradient)
      return wrong_slot(each, each.outputs[0], "a gradient");
    for (SlotId slot : each.inputs)
      if (ref(slot).kind != ValueKind::GradientPart || ref(slot).subject != sum.subject)
        return wrong_slot(each, slot, "a part of the gradient that it sums");
    return {};
  }

  const RoleView& view_;
  const PlanSet& set_;
  const ModelSpec& model_;
  std::map<std::pair<GroupId, GroupId>, bool> same_ranks_;
  // By value, the last instruction (counted from 1) whose calls make it; read it; that writes its
  // gradient. One array for all instructions, so that each costs what it names.
  std::vector<uint32_t> made_, needed_, given_;
  uint32_t now_ = 0;
};

} // namespace

Result<void> verify_values(const RoleView& view) {
  return ValueVerifier(view).run();
}

} // namespace piper::ir
