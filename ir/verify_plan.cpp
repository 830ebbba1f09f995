// verify(PlanSet): the rules in order.
#include "ir/verify_plan.h"
#include "ir/names.h"
#include "ir/verify.h"

namespace piper::ir {

ModelFacts::ModelFacts(const PlanSet& set, const ModelSpec& spec)
    : model(spec), backward(spec.calls.size()), readers(spec.values.size()),
      bucket(spec.params.size()) {
  std::vector<bool> reached(spec.values.size());
  reached[spec.loss.value] = true;
  auto flows = [&](ValueId v) { return spec.value(v).differentiable; };
  for (size_t c = spec.calls.size(); c-- > 0;) {
    const ModelCall& call = spec.calls[c];
    backward[c] =
        std::any_of(call.outputs.begin(), call.outputs.end(),
                    [&](ValueId v) { return reached[v.value] && flows(v); }) &&
        (!call.params.empty() || std::any_of(call.inputs.begin(), call.inputs.end(), flows));
    if (!backward[c])
      continue;
    for (ValueId v : call.inputs)
      if (flows(v)) {
        reached[v.value] = true;
        if (readers[v.value].empty() || readers[v.value].back() != CallId(c))
          readers[v.value].push_back(CallId(c));
      }
  }
  for (auto& list : readers)
    std::reverse(list.begin(), list.end());
  for (size_t b = 0; b < set.buckets.size(); ++b)
    for (ParamId param : set.buckets[b].params)
      bucket[param.value] = BucketId(b);
}

Error RoleView::wrong(const Instruction& at, std::string message) const {
  return wrong_instruction(set, id, at, facts.model, std::move(message));
}
Error RoleView::wrong(std::string message) const {
  return internal_error(std::move(message), fmt::format("role {}", role.name));
}
std::string RoleView::value_name(const ValueRef& ref) const {
  std::string name;
  text::append_ref(name, {&facts.model, &set.buckets}, ref);
  return name;
}
std::string RoleView::slot_name(SlotId slot) const {
  return fmt::format("slot s{} ({})", slot.value, value_name(plan.slots[slot.value].value));
}

Result<void> verify(const PlanSet& set, const ModelSpec& model) {
  if (set.model != model.fingerprint())
    return wrong_set(set, fmt::format("the plans are for the model {}, this one is {}",
                                      set.model.to_string(), model.fingerprint().to_string()));
  PIPER_CHECK_OK(verify_tables(set, model));
  const ModelFacts facts(set, model);
  std::vector<RoleView> roles;
  std::vector<StreamOrder> orders;
  for (size_t r = 0; r < set.roles.size(); ++r) {
    roles.emplace_back(set, RoleId(r), facts);
    PIPER_CHECK_OK(verify_names(roles.back()));
    orders.emplace_back(roles.back().plan);
    PIPER_CHECK_OK(verify_slots(roles.back(), orders.back()));
  }
  if (set.kind == PlanKind::Migrate) {
    PIPER_CHECK_OK(verify_migration(set, model));
  } else {
    for (const RoleView& role : roles)
      PIPER_CHECK_OK(verify_values(role));
    PIPER_CHECK_OK(verify_calls(roles));
    for (size_t r = 0; r < roles.size(); ++r)
      PIPER_CHECK_OK(verify_windows(roles[r], orders[r]));
  }
  if (set.kind == PlanKind::Train) {
    PIPER_CHECK_OK(verify_gradients(roles));
    for (size_t r = 0; r < roles.size(); ++r)
      PIPER_CHECK_OK(verify_state(roles[r], orders[r]));
  }
  PIPER_TRY(const JointPlan joint, verify_transfers(set, model));
  if (auto ends = verify_progress(joint); !ends.ok())
    return std::move(ends).error();
  return {};
}

} // namespace piper::ir
