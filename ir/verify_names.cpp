// What an instruction names exists, and the instruction has what its opcode needs.
#include "ir/verify_plan.h"

namespace piper::ir {

namespace {

Result<void> ranges(const RoleView& view, const Instruction& each) {
  const auto& [set, plan, model] = std::tie(view.set, view.plan, view.facts.model);
  if (each.stream >= plan.streams.size())
    return view.wrong(each, fmt::format("stream {} of {}", each.stream, plan.streams.size()));
  if (each.microbatch < kNoMicrobatch || each.microbatch >= set.microbatches)
    return view.wrong(each, fmt::format("microbatch {} of {}", each.microbatch, set.microbatches));
  for (const auto* list : {&each.inputs, &each.outputs, &each.frees})
    for (SlotId slot : *list)
      // An output may be none: a chunk that keeps nothing for a backward.
      if (slot.value >= plan.slots.size() && (slot || list != &each.outputs))
        return view.wrong(each, fmt::format("slot s{} of {}", slot.value, plan.slots.size()));
  for (EventId event : each.waits)
    if (event.value >= plan.events)
      return view.wrong(each, fmt::format("event e{} of {}", event.value, plan.events));
  if (each.records && each.records.value >= plan.events)
    return view.wrong(each, fmt::format("event e{} of {}", each.records.value, plan.events));
  if (each.directive < -1 || each.directive >= static_cast<int64_t>(set.directives.size()))
    return view.wrong(each,
                      fmt::format("directive {} of {}", each.directive, set.directives.size()));
  for (BucketId bucket : each.buckets) {
    if (bucket.value >= set.buckets.size())
      return view.wrong(each, fmt::format("bucket b{} of {}", bucket.value, set.buckets.size()));
    const bool at_mirror = each.op == Opcode::RecvMirror || each.op == Opcode::UpdateMirror;
    if (!at_mirror && !view.is_member(set.buckets[bucket.value].group))
      return view.wrong(
          each, fmt::format("the role does not hold bucket {}", set.buckets[bucket.value].name));
  }
  for (const auto& chunk : each.chunks)
    for (CallId call : chunk)
      if (call.value >= model.calls.size())
        return view.wrong(each, fmt::format("call c{} of {}", call.value, model.calls.size()));
  if (each.self && !view.is_member(each.self))
    return view.wrong(each, fmt::format("the role is no member of g{}", each.self.value));
  if (each.group && each.group.value >= set.groups.size())
    return view.wrong(each, fmt::format("group g{} of {}", each.group.value, set.groups.size()));
  return {};
}

Result<void> chunks(const RoleView& view, const Instruction& each) {
  if (!is_compute(each.op)) {
    if (!each.chunks.empty())
      return view.wrong(each, "only what runs calls has chunks");
    return {};
  }
  if (each.chunks.empty())
    return view.wrong(each, "it has no chunks");
  CallId last;
  for (const auto& chunk : each.chunks) {
    if (chunk.empty())
      return view.wrong(each, "a chunk has no calls");
    for (CallId call : chunk) {
      if (last && call <= last)
        return view.wrong(each, "the calls of its chunks are not in forward order");
      last = call;
    }
  }
  return {};
}

/// What is done to a mirror is done on its group, by or with that of its bucket.
Result<void> mirror(const RoleView& view, const Instruction& each) {
  const Bucket& bucket = view.set.buckets[each.buckets[0].value];
  const bool sends = each.op == Opcode::SendMirror;
  const GroupId its = sends ? each.group : each.self;
  const GroupId other = sends ? each.self : each.group;
  if (mirror_on(bucket, its) == bucket.mirrors.size())
    return view.wrong(each, fmt::format("bucket {} has no mirror on g{}", bucket.name, its.value));
  if (other != (each.op == Opcode::UpdateMirror ? its : bucket.group))
    return view.wrong(each, fmt::format("bucket {} is not on g{}", bucket.name, other.value));
  return {};
}

Result<void> needs(const RoleView& view, const Instruction& each) {
  const PlanSet& set = view.set;
  if (is_of_state(each.op) != (set.kind == PlanKind::Migrate))
    return view.wrong(each,
                      fmt::format("it has no place in a plan of kind {}", to_string(set.kind)));
  const bool of_training =
      adds_to_gradients(each.op) || each.op == Opcode::Seed || each.op == Opcode::Recompute ||
      each.op == Opcode::Offload || each.op == Opcode::Fetch || each.op == Opcode::Add ||
      each.op == Opcode::Update || each.op == Opcode::ZeroGrads || each.op == Opcode::SendMirror ||
      each.op == Opcode::RecvMirror || each.op == Opcode::UpdateMirror ||
      (is_collective(each.op) && each.op != Opcode::Gather && each.op != Opcode::Redistribute);
  if (set.kind == PlanKind::Eval && of_training)
    return view.wrong(each, "an evaluation neither goes backward nor updates");
  if ((is_transfer(each.op) || is_collective(each.op)) && each.edge.value >= set.edges.size())
    return view.wrong(each, "its edge has no name in the plan set");
  if (is_of_state(each.op))
    return {};
  if (!each.self)
    return view.wrong(each, "it runs on no group");
  const bool of_group = is_bucket_op(each.op) || each.op == Opcode::Commit;
  if (of_group != (each.microbatch == kNoMicrobatch))
    return view.wrong(each, of_group ? "it happens once per iteration, not in a microbatch"
                                     : "it belongs to no microbatch");
  if (is_transfer(each.op) && !each.group)
    return view.wrong(each, "a transfer goes from a group to a group");
  if (each.op == Opcode::Redistribute) {
    if (!each.group)
      return view.wrong(each, "it moves a value from nowhere");
    const Group &from = set.groups[each.group.value], &to = set.groups[each.self.value];
    if (!move_between(from, to))
      return view.wrong(each, fmt::format("a value cannot go from g{} to g{} within blocks",
                                          each.group.value, each.self.value));
  }
  if (is_bucket_op(each.op) && each.buckets.size() != 1)
    return view.wrong(each, fmt::format("it has {} buckets, one is right", each.buckets.size()));
  if (!of_group && !each.buckets.empty())
    return view.wrong(each, "it has nothing to do with buckets");
  if (!of_group)
    return {};
  if (each.op == Opcode::SendMirror || each.op == Opcode::RecvMirror ||
      each.op == Opcode::UpdateMirror)
    return mirror(view, each);
  if (!view.is_member(each.group))
    return view.wrong(each, "the role is no member of the group of the collective");
  const GroupId right =
      each.op == Opcode::Commit ? set.world : set.buckets[each.buckets[0].value].group;
  if (each.group != right || each.self != right)
    return view.wrong(each, fmt::format("it spans g{}, but {} is on g{}", each.group.value,
                                        each.op == Opcode::Commit ? "the world" : "its bucket",
                                        right.value));
  return {};
}

Result<void> events(const RoleView& view) {
  std::vector<bool> recorded(view.plan.events);
  for (const Instruction& each : view.plan.instructions) {
    for (EventId event : each.waits)
      if (!recorded[event.value])
        return view.wrong(each, fmt::format("it waits for event e{}, which nothing before it "
                                            "records",
                                            event.value));
    if (!each.records)
      continue;
    if (recorded[each.records.value])
      return view.wrong(each, fmt::format("event e{} is recorded twice", each.records.value));
    recorded[each.records.value] = true;
  }
  return {};
}

} // namespace

Result<void> verify_names(const RoleView& view) {
  for (const Instruction& each : view.plan.instructions) {
    PIPER_CHECK_OK(ranges(view, each));
    PIPER_CHECK_OK(chunks(view, each));
    PIPER_CHECK_OK(needs(view, each));
  }
  return events(view);
}

} // namespace piper::ir
