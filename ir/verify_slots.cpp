// The life of a slot: written once, then read, then freed once, and never otherwise whatever the
// streams' speeds.
#include "ir/verify_plan.h"

namespace piper::ir {

Result<void> verify_slots(const RoleView& view, const StreamOrder& order) {
  constexpr uint32_t kNone = Id<void>::kNone;
  const Plan& plan = view.plan;
  const auto& all = plan.instructions;
  std::vector<uint32_t> writer(plan.slots.size(), kNone), freer(plan.slots.size(), kNone);
  for (uint32_t i = 0; i < all.size(); ++i) {
    for (SlotId slot : all[i].outputs) {
      if (!slot)
        continue;
      if (writer[slot.value] != kNone)
        return view.wrong(all[i], view.slot_name(slot) + " is written twice");
      writer[slot.value] = i;
    }
    for (SlotId slot : all[i].frees) {
      if (freer[slot.value] != kNone)
        return view.wrong(all[i], view.slot_name(slot) + " is freed twice");
      freer[slot.value] = i;
    }
  }
  for (uint32_t i = 0; i < all.size(); ++i)
    for (SlotId slot : all[i].inputs) {
      const uint32_t w = writer[slot.value], f = freer[slot.value];
      if (w == kNone || w >= i)
        return view.wrong(all[i], view.slot_name(slot) + " is read before it is written");
      if (!order.before(w, i))
        return view.wrong(all[i], fmt::format("{} is read on another stream without waiting for {}",
                                              view.slot_name(slot), view.name(w)));
      if (f != kNone && f != i && !order.before(i, f))
        return view.wrong(all[i], fmt::format("{} may be read after {} has freed it",
                                              view.slot_name(slot), view.name(f)));
    }
  for (uint32_t s = 0; s < plan.slots.size(); ++s) {
    const uint32_t w = writer[s], f = freer[s];
    if (w == kNone && f == kNone)
      continue;
    if (w == kNone || (f != kNone && f != w && !order.before(w, f)))
      return view.wrong(all[f], view.slot_name(SlotId(s)) + " is freed before it is written");
    if (f == kNone)
      return view.wrong(all[w], view.slot_name(SlotId(s)) + " is still live at the end");
  }
  return {};
}

} // namespace piper::ir
