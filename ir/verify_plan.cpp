// The rules of plan sets that one role shows alone, and of the tables beside the plans.
#include "ir/verify_plan.h"
#include "ir/names.h"
#include "ir/verify.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

class RoleVerifier {
public:
  RoleVerifier(const PlanSet& set, RoleId role, const ModelSpec& model)
      : set_(set), id_(role), role_(set.roles[role.value]), plan_(set.plans[role.value]),
        model_(model) {}

  Result<void> run() {
    for (const Instruction& each : plan_.instructions)
      PIPER_CHECK_OK(check(each));
    PIPER_CHECK_OK(order());
    PIPER_CHECK_OK(slots());
    PIPER_CHECK_OK(chunks());
    if (set_.kind != PlanKind::Migrate)
      PIPER_CHECK_OK(windows(Opcode::Gather, Opcode::Release, StateKind::Param, kNone));
    if (set_.kind == PlanKind::Train)
      PIPER_CHECK_OK(state());
    return {};
  }

private:
  Error wrong(const Instruction& at, std::string message) const {
    return wrong_instruction(set_, id_, at, model_, std::move(message));
  }
  std::string slot_name(SlotId slot) const {
    std::string name;
    text::append_ref(name, {&model_, &set_.buckets}, plan_.slots[slot.value].value);
    return fmt::format("slot s{} ({})", slot.value, name);
  }
  bool is_member(GroupId group) const {
    return std::find(role_.groups.begin(), role_.groups.end(), group) != role_.groups.end();
  }

  /// Everything that an instruction names exists, and belongs in a plan of this kind.
  Result<void> check(const Instruction& each) const {
    const bool of_state = each.op == Opcode::CopyState || each.op == Opcode::SendState ||
                          each.op == Opcode::RecvState;
    if (of_state != (set_.kind == PlanKind::Migrate))
      return wrong(each, fmt::format("it has no place in a plan of kind {}", to_string(set_.kind)));
    const bool of_training = adds_to_gradients(each.op) || each.op == Opcode::Seed ||
                             each.op == Opcode::Add || each.op == Opcode::Update ||
                             is_collective(each.op);
    if (set_.kind == PlanKind::Eval && of_training && each.op != Opcode::Gather)
      return wrong(each, "an evaluation neither goes backward nor updates");
    if (each.stream >= plan_.streams.size())
      return wrong(each, fmt::format("stream {} of {}", each.stream, plan_.streams.size()));
    if (each.microbatch < kNoMicrobatch || each.microbatch >= set_.microbatches)
      return wrong(each, fmt::format("microbatch {} of {}", each.microbatch, set_.microbatches));
    for (const auto* list : {&each.inputs, &each.outputs, &each.frees})
      for (SlotId slot : *list)
        // An output may be none: a chunk that keeps nothing for a backward.
        if (slot.value >= plan_.slots.size() && (slot || list != &each.outputs))
          return wrong(each, fmt::format("slot s{} of {}", slot.value, plan_.slots.size()));
    for (EventId event : each.waits)
      if (event.value >= plan_.events)
        return wrong(each, fmt::format("event e{} of {}", event.value, plan_.events));
    if (each.records && each.records.value >= plan_.events)
      return wrong(each, fmt::format("event e{} of {}", each.records.value, plan_.events));
    if (each.directive < -1 || each.directive >= static_cast<int64_t>(set_.directives.size()))
      return wrong(each, fmt::format("directive {} of {}", each.directive, set_.directives.size()));
    for (BucketId bucket : each.buckets) {
      if (bucket.value >= set_.buckets.size())
        return wrong(each, fmt::format("bucket b{} of {}", bucket.value, set_.buckets.size()));
      if (!is_member(set_.buckets[bucket.value].group))
        return wrong(
            each, fmt::format("the role does not hold bucket {}", set_.buckets[bucket.value].name));
    }
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk)
        if (call.value >= model_.calls.size())
          return wrong(each, fmt::format("call c{} of {}", call.value, model_.calls.size()));
    if (each.self && !is_member(each.self))
      return wrong(each, fmt::format("the role is no member of g{}", each.self.value));
    if (each.group && each.group.value >= set_.groups.size())
      return wrong(each, fmt::format("group g{} of {}", each.group.value, set_.groups.size()));
    if (is_collective(each.op) && !is_member(each.group))
      return wrong(each, "the role is no member of the group of the collective");
    if (is_transfer(each.op) || is_collective(each.op))
      if (each.edge.value >= set_.edges.size())
        return wrong(each, "its edge has no name in the plan set");
    if ((each.op == Opcode::Send || each.op == Opcode::Recv) && (!each.self || !each.group))
      return wrong(each, "a transfer goes from a group to a group");
    if (!is_bucket_op(each.op))
      return {};
    if (each.buckets.size() != 1)
      return wrong(each, fmt::format("it has {} buckets, one is right", each.buckets.size()));
    return {};
  }

  /// Finds for each instruction how far every stream has come for certain when it starts: what
  /// came before on its own stream, and what the events it waits for are known to come after.
  Result<void> order() {
    const size_t streams = plan_.streams.size();
    reached_.assign(plan_.instructions.size() * streams, 0);
    position_.resize(plan_.instructions.size());
    std::vector<uint32_t> recorder(plan_.events, kNone);
    std::vector<uint32_t> last(streams, kNone);
    std::vector<uint32_t> length(streams);
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      const Instruction& each = plan_.instructions[i];
      uint32_t* reached = &reached_[i * streams];
      auto join = [&](uint32_t before) {
        for (size_t s = 0; s < streams; ++s)
          reached[s] = std::max(reached[s], reached_[before * streams + s]);
        const uint32_t stream = plan_.instructions[before].stream;
        reached[stream] = std::max(reached[stream], position_[before] + 1);
      };
      if (last[each.stream] != kNone)
        join(last[each.stream]);
      for (EventId event : each.waits) {
        if (recorder[event.value] == kNone)
          return wrong(each, fmt::format("it waits for event e{}, which nothing before it records",
                                         event.value));
        join(recorder[event.value]);
      }
      if (each.records) {
        if (recorder[each.records.value] != kNone)
          return wrong(each, fmt::format("event e{} is recorded twice", each.records.value));
        recorder[each.records.value] = i;
      }
      position_[i] = length[each.stream]++;
      last[each.stream] = i;
    }
    return {};
  }

  bool before(uint32_t a, uint32_t b) const {
    return reached_[b * plan_.streams.size() + plan_.instructions[a].stream] > position_[a];
  }

  Result<void> slots() const {
    std::vector<uint32_t> writer(plan_.slots.size(), kNone), freer(plan_.slots.size(), kNone);
    const auto& all = plan_.instructions;
    for (uint32_t i = 0; i < all.size(); ++i) {
      for (SlotId slot : all[i].outputs) {
        if (!slot)
          continue;
        if (writer[slot.value] != kNone)
          return wrong(all[i], slot_name(slot) + " is written twice");
        writer[slot.value] = i;
      }
      for (SlotId slot : all[i].frees) {
        if (freer[slot.value] != kNone)
          return wrong(all[i], slot_name(slot) + " is freed twice");
        freer[slot.value] = i;
      }
    }
    for (uint32_t i = 0; i < all.size(); ++i)
      for (SlotId slot : all[i].inputs) {
        const uint32_t w = writer[slot.value], f = freer[slot.value];
        if (w == kNone || w >= i)
          return wrong(all[i], slot_name(slot) + " is read before it is written");
        if (!before(w, i))
          return wrong(all[i], fmt::format("{} is read on another stream without waiting for {}",
                                           slot_name(slot), set_.name(id_, all[w], &model_)));
        if (f != kNone && f != i && !before(i, f))
          return wrong(all[i], fmt::format("{} may be read after {} has freed it", slot_name(slot),
                                           set_.name(id_, all[f], &model_)));
      }
    for (uint32_t s = 0; s < plan_.slots.size(); ++s) {
      const uint32_t w = writer[s], f = freer[s];
      if (w == kNone && f == kNone)
        continue;
      if (w == kNone || (f != kNone && f != w && !before(w, f)))
        return wrong(all[f], slot_name(SlotId(s)) + " is freed before it is written");
      if (f == kNone)
        return wrong(all[w], slot_name(SlotId(s)) + " is still live at the end");
    }
    return {};
  }

  /// A forward and a backward may hold different runs of calls, but cut them into the same chunks:
  /// what one chunk saved, its backward reads.
  Result<void> chunks() const {
    struct Saved {
      const std::vector<CallId>* calls;
      SlotId slot;
    };
    // By first call, microbatch and place.
    std::map<std::tuple<CallId, int32_t, GroupId>, Saved> forward, deferred;
    for (const Instruction& each : plan_.instructions) {
      if (!is_compute(each.op)) {
        if (!each.chunks.empty())
          return wrong(each, "only what runs calls has chunks");
        continue;
      }
      const bool is_forward = each.op == Opcode::Forward;
      if (each.chunks.empty() || std::any_of(each.chunks.begin(), each.chunks.end(),
                                             [](const auto& chunk) { return chunk.empty(); }))
        return wrong(each, "a chunk has no calls");
      const bool again = each.op == Opcode::Recompute;
      const std::vector<SlotId>& slots = is_forward || again ? each.outputs : each.inputs;
      const bool saves = set_.kind == PlanKind::Train;
      if (saves && slots.size() < each.chunks.size())
        return wrong(each, "it has fewer saved slots than chunks");
      for (size_t c = 0; c < each.chunks.size(); ++c) {
        const auto& chunk = each.chunks[c];
        const std::tuple key{chunk[0], each.microbatch, each.self};
        if (is_forward) {
          if (!forward.emplace(key, Saved{&chunk, saves ? slots[c] : SlotId()}).second)
            return wrong(each, "its first call runs twice for one microbatch");
          continue;
        }
        if (again) {
          const auto kept = forward.find(key);
          if (kept == forward.end() || *kept->second.calls != chunk || kept->second.slot)
            return wrong(each, "there is no forward before it that has not kept these calls'");
          kept->second.slot = slots[c];
          continue;
        }
        const bool weight = each.op == Opcode::BackwardWeight;
        const auto& made = weight ? deferred : forward;
        const auto found = made.find(key);
        if (found == made.end())
          return wrong(each, fmt::format("there is no {} of its microbatch before it",
                                         weight ? "backward for inputs" : "forward"));
        if (*found->second.calls != chunk)
          return wrong(each, "its chunks differ from those of the forward of its microbatch");
        if (found->second.slot != slots[c])
          return wrong(each, weight ? "it does not read what the backward for inputs left"
                                    : "it does not begin with what the forward of its microbatch "
                                      "saved");
        if (each.op != Opcode::BackwardInput)
          continue;
        if (each.outputs.size() < each.chunks.size())
          return wrong(each, "it has fewer deferred slots than chunks");
        if (each.outputs[c])
          deferred.emplace(key, Saved{&chunk, each.outputs[c]});
      }
    }
    return {};
  }

  /// What is done to a bucket in an iteration; indices of instructions.
  struct BucketWork {
    uint32_t reduce = kNone, update = kNone, gather = kNone;
  };

  Result<void> record(uint32_t i, uint32_t BucketWork::*what, std::vector<BucketWork>& work) const {
    const Instruction& each = plan_.instructions[i];
    for (BucketId bucket : each.buckets) {
      if (work[bucket.value].*what != kNone)
        return wrong(each,
                     fmt::format("bucket {} has this done twice", set_.buckets[bucket.value].name));
      work[bucket.value].*what = i;
    }
    return {};
  }

  /// Gradients are complete, then summed, then committed, then every bucket is updated once.
  Result<void> state() const {
    std::vector<BucketWork> work(set_.buckets.size());
    uint32_t commit = kNone;
    const auto& all = plan_.instructions;
    for (uint32_t i = 0; i < all.size(); ++i) {
      switch (all[i].op) {
      case Opcode::AllReduce:
      case Opcode::ReduceScatter:
        if (!set_.buckets[all[i].buckets[0].value].shard_grads) // those: once a window
          PIPER_CHECK_OK(record(i, &BucketWork::reduce, work));
        break;
      case Opcode::Update:
        PIPER_CHECK_OK(record(i, &BucketWork::update, work));
        break;
      case Opcode::AllGather:
        PIPER_CHECK_OK(record(i, &BucketWork::gather, work));
        break;
      case Opcode::Commit:
        if (commit != kNone)
          return wrong(all[i], "there are two commits");
        commit = i;
        break;
      default:
        break;
      }
    }
    const std::string where = fmt::format("role {}", role_.name);
    if (commit == kNone)
      return internal_error("the plan has no commit", where);
    for (size_t b = 0; b < set_.buckets.size(); ++b) {
      const Bucket& bucket = set_.buckets[b];
      if (!is_member(bucket.group))
        continue;
      const BucketWork& its = work[b];
      if (its.update == kNone)
        return internal_error(fmt::format("bucket {} is not updated", bucket.name), where);
      if (!before(commit, its.update))
        return wrong(all[its.update], "it may run before the commit");
      if (set_.groups[bucket.group.value].devices.size() == 1 || bucket.shard_grads)
        continue;
      if (its.reduce == kNone)
        return internal_error(fmt::format("bucket {} is not summed over its group", bucket.name),
                              where);
      if (!before(its.reduce, commit))
        return wrong(all[its.reduce], "the commit does not wait for it");
      if ((all[its.reduce].op == Opcode::ReduceScatter) != bucket.shard_optimizer)
        return wrong(all[its.reduce],
                     fmt::format("the optimizer of bucket {} is {}sharded", bucket.name,
                                 bucket.shard_optimizer ? "" : "not "));
      if (!bucket.shard_optimizer || bucket.shard_params)
        continue;
      if (its.gather == kNone)
        return internal_error(
            fmt::format("bucket {} is not gathered after its update", bucket.name), where);
      if (!before(its.update, its.gather))
        return wrong(all[its.gather], "it may run before the update");
    }
    PIPER_CHECK_OK(gradients(work, commit));
    return windows(Opcode::ZeroGrads, Opcode::ReduceScatter, StateKind::Grad, commit);
  }

  /// A sharded array of a bucket is whole from `open` to `close`; what needs it whole lies between,
  /// and of two such windows one has ended before the other begins. `end`: the last one has ended
  /// by then (none: by the end of the plan).
  Result<void> windows(Opcode open, Opcode close, StateKind kind, uint32_t end) const {
    std::vector<uint32_t> bucket_of(model_.params.size(), kNone);
    for (uint32_t b = 0; b < set_.buckets.size(); ++b)
      for (ParamId param : set_.buckets[b].params)
        bucket_of[param.value] = b;
    struct State {
      uint32_t open = kNone, close = kNone;
      std::vector<uint32_t> uses;
    };
    std::vector<State> states(set_.buckets.size());
    const auto& all = plan_.instructions;
    for (uint32_t i = 0; i < all.size(); ++i) {
      const Instruction& each = all[i];
      if (each.op == open || each.op == close) {
        State& state = states[each.buckets.at(0).value];
        const Bucket& bucket = set_.buckets[each.buckets[0].value];
        if (!is_sharded(bucket, kind)) {
          if (each.op == open)
            return wrong(each, fmt::format("bucket {} is not sharded", bucket.name));
          continue;
        }
        if (each.op == open) {
          if (state.open != kNone)
            return wrong(each,
                         fmt::format("{} has not ended", set_.name(id_, all[state.open], &model_)));
          if (state.close != kNone && !before(state.close, i))
            return wrong(each, fmt::format("it may run before {}",
                                           set_.name(id_, all[state.close], &model_)));
          state = {.open = i};
          continue;
        }
        if (state.open == kNone || !before(state.open, i))
          return wrong(each,
                       fmt::format("there is nothing whole of bucket {} before it", bucket.name));
        for (uint32_t use : state.uses)
          if (!before(use, i))
            return wrong(each, fmt::format("it may run before {} is done",
                                           set_.name(id_, all[use], &model_)));
        if (end != kNone && !before(i, end))
          return wrong(each, "the commit does not wait for it");
        state = {.close = i};
        continue;
      }
      if (!is_compute(each.op) || (kind == StateKind::Grad && !adds_to_gradients(each.op)))
        continue;
      for (const auto& chunk : each.chunks)
        for (CallId call : chunk)
          for (ParamId param : model_.call(call).params) {
            const uint32_t b = bucket_of[param.value];
            if (!is_sharded(set_.buckets[b], kind))
              continue;
            if (kind == StateKind::Grad && each.op == Opcode::BackwardInput &&
                model_.param(param).type.dims.size() > 1)
              continue; // left to BackwardWeight
            if (states[b].open == kNone || !before(states[b].open, i))
              return wrong(each, fmt::format("the {} of bucket {} are not whole when it runs",
                                             kind == StateKind::Grad ? "gradients" : "parameters",
                                             set_.buckets[b].name));
            states[b].uses.push_back(i);
          }
    }
    for (const State& state : states)
      if (state.open != kNone)
        return wrong(all[state.open], "what it makes whole is never let go");
    return {};
  }

  /// Whatever adds to a bucket's gradient is done before the bucket is summed or committed.
  Result<void> gradients(const std::vector<BucketWork>& work, uint32_t commit) const {
    std::vector<uint32_t> bucket_of(model_.params.size(), kNone);
    for (uint32_t b = 0; b < set_.buckets.size(); ++b)
      for (ParamId param : set_.buckets[b].params)
        bucket_of[param.value] = b;
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      const Instruction& each = plan_.instructions[i];
      for (const auto& chunk : each.chunks)
        for (CallId call : chunk)
          for (ParamId param : model_.call(call).params) {
            const uint32_t b = bucket_of[param.value];
            if (!is_member(set_.buckets[b].group))
              return wrong(each, fmt::format("the role does not hold bucket {} of parameter {}",
                                             set_.buckets[b].name, model_.param(param).name));
            if (!adds_to_gradients(each.op) || set_.buckets[b].shard_grads)
              continue;
            const uint32_t end = work[b].reduce != kNone ? work[b].reduce : commit;
            if (!before(i, end))
              return wrong(each, fmt::format("{} does not wait for it, though it adds to bucket {}",
                                             set_.name(id_, plan_.instructions[end], &model_),
                                             set_.buckets[b].name));
          }
    }
    return {};
  }

  const PlanSet& set_;
  RoleId id_;
  const Role& role_;
  const Plan& plan_;
  const ModelSpec& model_;
  std::vector<uint32_t> position_; // of each instruction in its stream
  std::vector<uint32_t> reached_;  // by instruction and stream: see order()
};

Error wrong(const PlanSet& set, std::string message) {
  return internal_error(std::move(message),
                        fmt::format("{} plans of epoch {}", to_string(set.kind), set.epoch));
}

Result<void> verify_groups(const PlanSet& set) {
  for (size_t g = 0; g < set.groups.size(); ++g) {
    std::vector<DeviceIndex> devices = set.groups[g].devices;
    if (devices.empty())
      return wrong(set, fmt::format("group g{} has no devices", g));
    std::sort(devices.begin(), devices.end());
    if (auto twice = std::adjacent_find(devices.begin(), devices.end()); twice != devices.end())
      return wrong(set, fmt::format("group g{} has device {} twice", g, *twice));
  }
  if (set.roles.size() != set.plans.size())
    return wrong(set, fmt::format("{} roles have {} plans", set.roles.size(), set.plans.size()));
  for (const Role& role : set.roles)
    for (GroupId group : role.groups)
      if (group.value >= set.groups.size())
        return wrong(set, fmt::format("role {} is a member of g{}, which does not exist", role.name,
                                      group.value));
  for (const auto& [device, role] : set.devices)
    if (role.value >= set.roles.size())
      return wrong(
          set, fmt::format("device {} has role r{} of {}", device, role.value, set.roles.size()));
  if (set.kind == PlanKind::Migrate) // its devices are those of two epochs, its groups of one
    return {};
  // Devices of a role are members of its groups, and the reverse.
  std::map<DeviceIndex, std::vector<GroupId>> of_device;
  for (size_t g = 0; g < set.groups.size(); ++g)
    for (DeviceIndex device : set.groups[g].devices)
      of_device[device].push_back(GroupId(g));
  for (const auto& [device, role] : set.devices) {
    std::vector<GroupId> of_role = set.roles[role.value].groups;
    std::sort(of_role.begin(), of_role.end());
    if (of_role != of_device[device])
      return wrong(set, fmt::format("device {} is not in exactly the groups of its role {}", device,
                                    set.roles[role.value].name));
  }
  if (set.world.value >= set.groups.size())
    return wrong(set, "there is no world");
  std::vector<DeviceIndex> world = set.groups[set.world.value].devices;
  std::sort(world.begin(), world.end());
  if (!std::equal(world.begin(), world.end(), set.devices.begin(), set.devices.end(),
                  [](DeviceIndex a, const auto& b) { return a == b.first; }))
    return wrong(set, "the world is not exactly the devices that have a plan");
  return {};
}

Result<void> verify_buckets(const PlanSet& set, const ModelSpec& model) {
  std::vector<bool> held(model.params.size());
  for (const Bucket& bucket : set.buckets) {
    if (bucket.group.value >= set.groups.size())
      return wrong(set, fmt::format("bucket {} is on no group", bucket.name));
    for (ParamId param : bucket.params) {
      if (param.value >= held.size())
        return wrong(set, fmt::format("bucket {} holds parameter {}, which does not exist",
                                      bucket.name, param.value));
      if (held[param.value])
        return wrong(set, fmt::format("parameter {} is in two buckets", model.param(param).name));
      held[param.value] = true;
    }
  }
  for (size_t p = 0; p < held.size(); ++p)
    if (!held[p])
      return wrong(set, fmt::format("parameter {} is in no bucket", model.params[p].name));
  return {};
}

} // namespace

Result<void> verify_role(const PlanSet& set, RoleId role, const ModelSpec& model) {
  return RoleVerifier(set, role, model).run();
}

Result<void> verify(const PlanSet& set, const ModelSpec& model) {
  if (set.model != model.fingerprint())
    return wrong(set, fmt::format("the plans are for the model {}, this one is {}",
                                  set.model.to_string(), model.fingerprint().to_string()));
  if (set.microbatches < 1)
    return wrong(set, fmt::format("there are {} microbatches", set.microbatches));
  PIPER_CHECK_OK(verify_groups(set));
  if (set.kind != PlanKind::Migrate)
    PIPER_CHECK_OK(verify_buckets(set, model));
  for (size_t r = 0; r < set.roles.size(); ++r)
    PIPER_CHECK_OK(verify_role(set, RoleId(r), model));
  return verify_transfers(set, model);
}

} // namespace piper::ir
