// Every microbatch of every call goes forward and backward once on each device of one group. A
// backward may come in two: for inputs, and for weights.
#include "ir/verify_plan.h"

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

/// Where each microbatch of each call runs.
struct Places {
  size_t microbatches;
  std::vector<GroupId> groups; ///< by call and microbatch
  std::vector<size_t> count;   ///< of each group, how many it runs
  GroupId& of(CallId call, int32_t microbatch) {
    return groups[call.value * microbatches + static_cast<size_t>(microbatch)];
  }
  GroupId of(CallId call, int32_t microbatch) const {
    return groups[call.value * microbatches + static_cast<size_t>(microbatch)];
  }
};

/// The devices of a group that runs calls cut the rows among them, all groups into as many shares.
Result<void> check_shares(const RoleView& role, const Instruction& each, GroupId& first) {
  const PlanSet& set = role.set;
  const int64_t shares = replicas(set, each.self), rows = set.batch / set.microbatches;
  const Group& group = set.groups[each.self.value];
  if (group.size() > static_cast<size_t>(shares) * group.ways)
    return role.wrong(each,
                      fmt::format("the devices of g{} would all do the same", each.self.value));
  if (rows % shares != 0)
    return role.wrong(each, fmt::format("{} rows of a microbatch for {} replicas", rows, shares));
  if (!first)
    first = each.self;
  if (shares != replicas(set, first))
    return role.wrong(each, fmt::format("g{} has {} replicas, g{} has {}", each.self.value, shares,
                                        first.value, replicas(set, first)));
  return {};
}

/// The ranks of a block can share the call as the group says.
Result<void> check_layout(const RoleView& role, const Instruction& each, CallId id) {
  const Group& group = role.set.groups[each.self.value];
  const ModelCall& call = role.facts.model.call(id);
  switch (group.layout) {
  case Layout::Whole:
    return {};
  case Layout::Tokens:
    if (call.cut == Cut::Tokens)
      return {};
    break;
  case Layout::Weights:
  case Layout::Experts:
    if (call.cut == (group.layout == Layout::Weights ? Cut::Tensor : Cut::Experts) &&
        call.pieces % group.ways == 0)
      return {};
    break;
  case Layout::Partial:
    break; // of values alone
  }
  return role.wrong(each,
                    fmt::format("the ranks of g{} cannot share call {} so: it is {} in "
                                "blocks of {}",
                                each.self.value, call.name, to_string(group.layout), group.ways));
}

Result<Places> find_places(const std::vector<RoleView>& roles) {
  const PlanSet& set = roles.front().set;
  const ModelSpec& model = roles.front().facts.model;
  const auto microbatches = static_cast<size_t>(set.microbatches);
  Places places{microbatches, std::vector<GroupId>(model.calls.size() * microbatches),
                std::vector<size_t>(set.groups.size())};
  GroupId first;
  for (const RoleView& role : roles)
    for (const Instruction& each : role.plan.instructions) {
      if (each.op != Opcode::Forward)
        continue;
      PIPER_CHECK_OK(check_shares(role, each, first));
      for (const auto& chunk : each.chunks)
        for (CallId call : chunk) {
          PIPER_CHECK_OK(check_layout(role, each, call));
          GroupId& group = places.of(call, each.microbatch);
          if (group && group != each.self)
            return role.wrong(each, fmt::format("g{} runs this microbatch of call {} too",
                                                group.value, model.call(call).name));
          group = each.self;
        }
    }
  for (uint32_t c = 0; c < model.calls.size(); ++c)
    for (int32_t m = 0; m < set.microbatches; ++m)
      if (const GroupId group = places.of(CallId(c), m))
        ++places.count[group.value];
      else
        return wrong_set(set, fmt::format("microbatch {} of call {} goes forward nowhere", m,
                                          model.calls[c].name));
  return places;
}

/// What one role does of each microbatch of the calls that it runs.
class CallVerifier {
public:
  CallVerifier(const RoleView& view, const Places& places)
      : view_(view), set_(view.set), facts_(view.facts), places_(places),
        local_(facts_.model.calls.size(), kNone) {
    for (const Instruction& each : view.plan.instructions)
      if (each.op == Opcode::Forward)
        for (const auto& chunk : each.chunks)
          for (CallId call : chunk)
            if (local_[call.value] == kNone) {
              local_[call.value] = static_cast<uint32_t>(calls_.size());
              calls_.push_back(call);
            }
    const size_t entries = calls_.size() * static_cast<size_t>(set_.microbatches);
    forward_.assign(entries, kNone);
    again_.assign(entries, kNone);
    backward_.assign(entries, kNone);
    weight_.assign(entries, kNone);
    losses_.assign(static_cast<size_t>(set_.microbatches), kNone);
    for (uint32_t s = 0; s < view.plan.slots.size(); ++s)
      origin_.emplace_back(s);
    for (const Instruction& each : view.plan.instructions)
      if (each.op == Opcode::Offload || each.op == Opcode::Fetch)
        for (size_t i = 0; i < each.inputs.size(); ++i)
          origin_[each.outputs[i].value] = origin_[each.inputs[i].value];
  }

  Result<void> run() {
    const auto& all = view_.plan.instructions;
    for (uint32_t i = 0; i < all.size(); ++i)
      if (all[i].op == Opcode::Forward)
        PIPER_CHECK_OK(record(i, forward_, "forward"));
      else if (all[i].op == Opcode::Recompute)
        PIPER_CHECK_OK(check_again(i));
      else if (goes_backward(all[i].op))
        PIPER_CHECK_OK(check_chunks(i, forward_, "forward", backward_, "backward"));
      else if (all[i].op == Opcode::BackwardWeight)
        PIPER_CHECK_OK(
            check_chunks(i, backward_, "backward for inputs", weight_, "backward for weights"));
      else if (all[i].op == Opcode::Loss)
        PIPER_CHECK_OK(check_loss(i));
    return check_complete();
  }

private:
  size_t index(CallId call, int32_t microbatch) const {
    return local_[call.value] * static_cast<size_t>(set_.microbatches) +
           static_cast<size_t>(microbatch);
  }

  Result<void> record(uint32_t i, std::vector<uint32_t>& table, const char* pass) {
    const Instruction& each = view_.plan.instructions[i];
    for (const auto& chunk : each.chunks)
      for (CallId call : chunk) {
        if (const GroupId place = places_.of(call, each.microbatch); each.self != place)
          return view_.wrong(each, fmt::format("its microbatch of call {} is on g{}",
                                               facts_.model.call(call).name, place.value));
        uint32_t& done = table[index(call, each.microbatch)];
        if (done != kNone)
          return view_.wrong(each, fmt::format("call {} goes {} twice for one microbatch",
                                               facts_.model.call(call).name, pass));
        done = i;
      }
    return {};
  }

  /// The passes of a microbatch may hold different runs of calls, but cut them into the same
  /// chunks: what one chunk kept in the pass before, this one reads.
  Result<void> check_chunks(uint32_t i, const std::vector<uint32_t>& before,
                            const char* before_name, std::vector<uint32_t>& now,
                            const char* now_name) {
    const Instruction& each = view_.plan.instructions[i];
    for (size_t c = 0; c < each.chunks.size(); ++c) {
      const auto& chunk = each.chunks[c];
      const uint32_t b =
          local_[chunk[0].value] == kNone ? kNone : before[index(chunk[0], each.microbatch)];
      if (b == kNone)
        return view_.wrong(each,
                           fmt::format("there is no {} of its microbatch before it", before_name));
      // What a forward did not keep, its repetition did.
      const uint32_t again =
          &before == &forward_ ? again_[index(chunk[0], each.microbatch)] : kNone;
      const Instruction& other = view_.plan.instructions[again == kNone ? b : again];
      const auto same = std::lower_bound(
          other.chunks.begin(), other.chunks.end(), chunk[0],
          [](const std::vector<CallId>& its, CallId call) { return its[0] < call; });
      if (same == other.chunks.end() || *same != chunk)
        return view_.wrong(each, fmt::format("its chunks differ from those of the {} of its "
                                             "microbatch",
                                             before_name));
      const auto kept = static_cast<size_t>(same - other.chunks.begin());
      if (kept >= other.outputs.size() || other.outputs[kept] != origin_[each.inputs[c].value])
        return view_.wrong(each, fmt::format("it does not begin with what the {} of its microbatch "
                                             "kept",
                                             before_name));
    }
    return record(i, now, now_name);
  }

  /// A forward again: of whole chunks, of which the forward kept nothing.
  Result<void> check_again(uint32_t i) {
    const Instruction& each = view_.plan.instructions[i];
    for (const auto& chunk : each.chunks) {
      const uint32_t f =
          local_[chunk[0].value] == kNone ? kNone : forward_[index(chunk[0], each.microbatch)];
      if (f == kNone)
        return view_.wrong(each, "there is no forward of its microbatch before it");
      const Instruction& forward = view_.plan.instructions[f];
      const auto same = std::find(forward.chunks.begin(), forward.chunks.end(), chunk);
      if (same == forward.chunks.end())
        return view_.wrong(each, "its chunks differ from those of the forward of its microbatch");
      if (forward.outputs[static_cast<size_t>(same - forward.chunks.begin())])
        return view_.wrong(each, "the forward of its microbatch has kept what it needs");
    }
    return record(i, again_, "forward again");
  }

  Result<void> check_loss(uint32_t i) {
    const Instruction& each = view_.plan.instructions[i];
    uint32_t& done = losses_[static_cast<size_t>(each.microbatch)];
    if (done != kNone)
      return view_.wrong(each, "the loss of its microbatch is handed over twice");
    done = i;
    return {};
  }

  Result<void> check_complete() const {
    size_t done = 0, due = 0;
    for (CallId call : calls_)
      for (int32_t m = 0; m < set_.microbatches; ++m) {
        const size_t at = index(call, m);
        if (forward_[at] == kNone)
          continue;
        ++done;
        if (set_.kind != PlanKind::Train || !facts_.backward[call.value])
          continue;
        if (backward_[at] == kNone)
          return missing(call, m, "backward");
        if (!facts_.model.call(call).params.empty() && weight_[at] == kNone &&
            view_.plan.instructions[backward_[at]].op == Opcode::BackwardInput)
          return missing(call, m, "backward for weights");
      }
    for (GroupId group : view_.role.groups)
      due += places_.count[group.value];
    const CallId last = facts_.model.value(facts_.model.loss).producer;
    for (int32_t m = 0; m < set_.microbatches; ++m) {
      if (done != due)
        for (uint32_t c = 0; c < local_.size(); ++c)
          if (view_.is_member(places_.of(CallId(c), m)) &&
              (local_[c] == kNone || forward_[index(CallId(c), m)] == kNone))
            return missing(CallId(c), m, "forward");
      const uint32_t loss = losses_[static_cast<size_t>(m)];
      const bool ours = last && view_.is_member(places_.of(last, m));
      if (ours && loss == kNone)
        return view_.wrong(fmt::format("the loss of microbatch {} is not handed over", m));
      if (!ours && loss != kNone)
        return view_.wrong(view_.plan.instructions[loss], "another role computes the loss");
    }
    return {};
  }
  Error missing(CallId call, int32_t microbatch, const char* pass) const {
    return view_.wrong(fmt::format("call {} does not go {} for microbatch {}",
                                   facts_.model.call(call).name, pass, microbatch));
  }

  const RoleView& view_;
  const PlanSet& set_;
  const ModelFacts& facts_;
  const Places& places_;
  std::vector<CallId> calls_;   ///< of which the role runs a microbatch
  std::vector<uint32_t> local_; ///< of each call, its place in calls_
  std::vector<SlotId> origin_;  ///< of each slot, the one whose contents were moved there
  // By call and microbatch, and by microbatch: instructions.
  std::vector<uint32_t> forward_, again_, backward_, weight_, losses_;
};

} // namespace

Result<void> verify_calls(const std::vector<RoleView>& roles) {
  if (roles.empty())
    return {};
  PIPER_TRY(const Places places, find_places(roles));
  for (const RoleView& role : roles)
    PIPER_CHECK_OK(CallVerifier(role, places).run());
  return {};
}

} // namespace piper::ir
