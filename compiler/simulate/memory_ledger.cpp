#include "compiler/simulate/memory_ledger.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace piper::compiler {

using namespace ir;

namespace {

constexpr std::array kNames = {"parameters",    "gradients",   "optimizer", "mirrors",
                               "whole buckets", "activations", "values",    "transient"};
static_assert(kNames.size() == kHoldings);

int64_t whole(double bytes) {
  return std::llround(std::ceil(bytes));
}

} // namespace

const char* to_string(Holding holding) {
  return kNames[static_cast<size_t>(holding)];
}

MemoryLayout::MemoryLayout(const PlanSet& plans, RoleId role, const ModelSpec& model,
                           const CostModel& costs)
    : plans_(plans), model_(model), costs_(costs) {
  const Plan& plan = plans.plans[role.value];
  slots_.resize(plan.slots.size());
  for (uint32_t s = 0; s < plan.slots.size(); ++s) {
    ValueRef ref = plan.slots[s].value;
    if (ref.kind == ValueKind::Saved || ref.kind == ValueKind::Deferred)
      continue;
    const bool away = ref.kind == ValueKind::Activation && ref.part == kInPool;
    if (ref.kind == ValueKind::Activation)
      ref.part = CallId::kNone;
    if (!away)
      slots_[s] = {storage_of(ref)};
  }
  std::vector<SlotId> left_from(plan.slots.size()); // of what is away, the slot that held it
  for (const Instruction& each : plan.instructions)
    if (each.op == Opcode::Offload)
      for (size_t k = 0; k < each.inputs.size(); ++k)
        left_from[each.outputs[k].value] = each.inputs[k];
  transient_.resize(plan.instructions.size());
  opens_.resize(plan.instructions.size());
  closes_.resize(plan.instructions.size());
  for (uint32_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& each = plan.instructions[i];
    if ((goes_forward(each.op) && plans.kind == PlanKind::Train) ||
        each.op == Opcode::BackwardInput)
      lay_out_kept(each);
    if (each.op == Opcode::Fetch) // what comes back is as it was
      for (size_t k = 0; k < each.inputs.size(); ++k)
        if (plan.slots[each.inputs[k].value].value.kind == ValueKind::Saved)
          slots_[each.outputs[k].value] = slots_[left_from[each.inputs[k].value].value];
    lay_out_whole(each, i);
    if (is_compute(each.op))
      transient_[i] = transient(plan, each);
  }
  if (plans.kind != PlanKind::Train)
    return;
  const auto& groups = plans.roles[role.value].groups;
  for (const Bucket& bucket : plans.buckets) {
    for (GroupId mirror : bucket.mirrors)
      if (std::find(groups.begin(), groups.end(), mirror) != groups.end())
        state_[static_cast<size_t>(Holding::Mirrors)] += mirror_bytes(bucket);
    if (std::find(groups.begin(), groups.end(), bucket.group) == groups.end())
      continue;
    const auto hold = [&](Holding holding, StateKind kind, int64_t arrays) {
      const int64_t elements = is_sharded(bucket, kind) ? bucket.shard_numel() : bucket.numel;
      state_[static_cast<size_t>(holding)] += arrays * elements * size_of(bucket.dtype);
    };
    if (!bucket.offload_params)
      hold(Holding::Parameters, StateKind::Param, 1);
    hold(Holding::Gradients, StateKind::Grad, 1);
    if (!bucket.offload_optimizer)
      hold(Holding::Optimizer, StateKind::Moment1, costs.moments);
    if (costs.moments == 2)
      state_[static_cast<size_t>(Holding::Optimizer)] += 8; // Adam counts its steps
  }
}

/// Of what one rank owns.
int64_t MemoryLayout::mirror_bytes(const Bucket& bucket) const {
  const int64_t bytes = bucket.shard_numel() * size_of(bucket.dtype);
  int64_t arrays = bucket.offload_params ? 1 : 2; // gradients, and parameters
  if (!bucket.offload_optimizer)
    arrays += costs_.moments;
  return arrays * bytes + (costs_.moments == 2 ? 8 : 0);
}

/// The windows in which a device has whole parameters or gradients of a sharded bucket.
void MemoryLayout::lay_out_whole(const Instruction& each, uint32_t index) {
  for (BucketId id : each.buckets) {
    const Bucket& bucket = plans_.buckets[id.value];
    const int64_t bytes = bucket.numel * size_of(bucket.dtype);
    if (each.op == Opcode::Gather || each.op == Opcode::ZeroGrads)
      opens_[index] += bytes;
    if (each.op == Opcode::Release || (each.op == Opcode::ReduceScatter && bucket.shard_grads))
      closes_[index] += bytes;
  }
}

int64_t MemoryLayout::bytes(SlotId slot) const {
  int64_t bytes = 0;
  for (uint32_t storage : slots_[slot.value])
    bytes += storages_[storage].bytes;
  return bytes;
}

uint32_t MemoryLayout::storage_of(const ValueRef& ref) {
  const auto [entry, added] = by_value_.try_emplace(ref, static_cast<uint32_t>(storages_.size()));
  if (added)
    storages_.push_back(
        {model_.values[ref.subject].type.bytes(plans_.rows(ref.at)), Holding::Values});
  return entry->second;
}

/// What a forward keeps of a chunk for its backward: the differentiable values that it reads from
/// outside (they are the leaves of its gradient), what its calls keep of their inputs and outputs,
/// and what they save beside those. What a backward for inputs keeps for that for weights: the same
/// of the calls that have weights, but for the leaves.
void MemoryLayout::lay_out_kept(const Instruction& each) {
  const int64_t rows = plans_.rows(each.self);
  const bool forward = goes_forward(each.op);
  for (size_t c = 0; c < each.chunks.size(); ++c) {
    const SlotId slot = each.outputs[c];
    if (!slot)
      continue;
    std::set<ValueId> kept, made;
    double bytes = 0;
    for (CallId id : each.chunks[c]) {
      const ModelCall& call = model_.call(id);
      const CallCost& cost = costs_.calls[id.value];
      if (!forward && call.params.empty())
        continue;
      for (ValueId value : call.inputs)
        if (forward && !made.contains(value) && model_.value(value).differentiable)
          kept.insert(value);
      made.insert(call.outputs.begin(), call.outputs.end());
      kept.insert(cost.keeps.begin(), cost.keeps.end());
      bytes += (forward ? cost.saved : cost.deferred).at(rows);
    }
    std::vector<uint32_t>& list = slots_[slot.value];
    for (ValueId value : kept)
      list.push_back(storage_of({.kind = ValueKind::Activation,
                                 .subject = value.value,
                                 .microbatch = each.microbatch,
                                 .at = each.self}));
    for (uint32_t storage : list)
      storages_[storage].holding = Holding::Activations;
    list.push_back(static_cast<uint32_t>(storages_.size()));
    storages_.push_back({whole(bytes), Holding::Activations});
  }
}

/// How far the instruction goes beyond what it leaves. While a call runs, forward or backward,
/// those after it have not saved anything yet or have let go of it already. A backward also holds
/// the gradient that it got from within the instruction; its outputs, which the ledger counts from
/// the start, are among what its calls are said to hold.
int64_t MemoryLayout::transient(const Plan& plan, const Instruction& each) const {
  const int64_t rows = plans_.rows(each.self);
  const bool forward = goes_forward(each.op);
  std::set<uint32_t> given;
  double outputs = 0;
  for (SlotId slot : each.inputs)
    given.insert(plan.slots[slot.value].value.subject);
  for (SlotId slot : each.outputs)
    if (slot && !forward && plan.slots[slot.value].value.kind != ValueKind::Deferred)
      outputs += static_cast<double>(plan.slots[slot.value].type.bytes(rows));
  double later = 0, most = 0;
  for (auto chunk = each.chunks.rbegin(); chunk != each.chunks.rend(); ++chunk)
    for (auto call = chunk->rbegin(); call != chunk->rend(); ++call) {
      const CallCost& cost = costs_.calls[call->value];
      double peak = (forward ? cost.forward_peak : cost.backward_peak).at(rows);
      for (ValueId value : model_.call(*call).outputs)
        if (goes_backward(each.op) && model_.value(value).differentiable &&
            !given.contains(value.value))
          peak += static_cast<double>(model_.value(value).type.bytes(rows));
      most = std::max(most, peak - later);
      later += cost.saved.at(rows);
    }
  return whole(std::max(0.0, most - outputs));
}

MemoryLedger::MemoryLedger(const MemoryLayout& layout)
    : layout_(&layout), references_(layout.storages_.size()), held_(layout.state_) {
  total_ = std::accumulate(held_.begin(), held_.end(), int64_t{0});
  note_peak();
}

void MemoryLedger::note_peak() {
  if (total_ > peak_) {
    peak_ = total_;
    at_peak_ = held_;
  }
}

void MemoryLedger::add(Holding holding, int64_t bytes) {
  held_[static_cast<size_t>(holding)] += bytes;
  total_ += bytes;
}

void MemoryLedger::acquire(SlotId slot) {
  for (uint32_t storage : layout_->slots_[slot.value])
    if (references_[storage]++ == 0)
      add(layout_->storages_[storage].holding, layout_->storages_[storage].bytes);
}

void MemoryLedger::release(SlotId slot) {
  for (uint32_t storage : layout_->slots_[slot.value])
    if (--references_[storage] == 0)
      add(layout_->storages_[storage].holding, -layout_->storages_[storage].bytes);
}

void MemoryLedger::begin(const Instruction& instruction, uint32_t index) {
  for (SlotId slot : instruction.outputs)
    if (slot)
      acquire(slot);
  add(Holding::Whole, layout_->opens_[index]);
  add(Holding::Transient, layout_->transient_[index]);
  note_peak();
}

void MemoryLedger::end(const Instruction& instruction, uint32_t index) {
  add(Holding::Transient, -layout_->transient_[index]);
  add(Holding::Whole, -layout_->closes_[index]);
  for (SlotId slot : instruction.frees)
    release(slot);
}

} // namespace piper::compiler
