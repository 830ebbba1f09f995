#include "compiler/simulate/memory_ledger.h"

#include <algorithm>
#include <numeric>

namespace piper::compiler {

using namespace ir;

namespace {

constexpr std::array kNames = {"parameters",    "gradients",   "optimizer", "mirrors",
                               "whole buckets", "activations", "values",    "transient"};
static_assert(kNames.size() == kHoldings);

Holding holding_of(Storage::Kind kind) {
  switch (kind) {
  case Storage::Kind::Values:
    return Holding::Values;
  case Storage::Kind::Saved:
    return Holding::Activations;
  case Storage::Kind::Window:
    return Holding::Whole;
  case Storage::Kind::Working:
    break;
  }
  return Holding::Transient;
}

std::vector<StateKind> arrays_of(int64_t moments) {
  switch (moments) {
  case 0:
    return {};
  case 1:
    return {StateKind::Moment1};
  default: // Adam counts its steps
    return {StateKind::Moment1, StateKind::Moment2, StateKind::Step};
  }
}

} // namespace

const char* to_string(Holding holding) {
  return kNames[static_cast<size_t>(holding)];
}

MemoryLayout::MemoryLayout(const PlanSet& plans, RoleId role, const ModelSpec& model,
                           int64_t moments)
    : storages_(storages_of(plans, model, plans.plans[role.value], Routing::Even)),
      changes_(plans.plans[role.value].instructions.size()) {
  for (uint32_t s = 0; s < storages_.size(); ++s) {
    changes_[storages_[s].made].made.push_back(s);
    for (const Storage::Drop& drop : storages_[s].drops) {
      Changes& its = changes_[drop.instruction];
      (drop.delivery ? its.delivered : its.dropped).push_back(s);
    }
  }
  if (plans.kind != PlanKind::Train)
    return;
  const std::vector<StateKind> arrays = arrays_of(moments);
  const auto& groups = plans.roles[role.value].groups;
  const auto is_member = [&](GroupId group) {
    return std::find(groups.begin(), groups.end(), group) != groups.end();
  };
  const auto hold = [&](Holding holding, int64_t bytes) {
    state_[static_cast<size_t>(holding)] += bytes;
  };
  for (const Bucket& bucket : plans.buckets) {
    hold(Holding::Mirrors, std::count_if(bucket.mirrors.begin(), bucket.mirrors.end(), is_member) *
                               mirror_of(bucket, arrays));
    if (!is_member(bucket.group))
      continue;
    const StateBytes state = state_of(bucket, arrays);
    hold(Holding::Parameters, state.params);
    hold(Holding::Gradients, state.gradients);
    hold(Holding::Optimizer, state.moments);
  }
}

int64_t MemoryLayout::sum(const std::vector<uint32_t>& storages) const {
  return std::accumulate(
      storages.begin(), storages.end(), int64_t{0},
      [&](int64_t bytes, uint32_t storage) { return bytes + storages_[storage].bytes; });
}

int64_t MemoryLayout::moved(uint32_t instruction) const {
  return sum(changes_[instruction].made) + sum(changes_[instruction].dropped);
}

MemoryLedger::MemoryLedger(const MemoryLayout& layout)
    : layout_(&layout), drops_(layout.storages_.size()), held_(layout.state_) {
  total_ = std::accumulate(held_.begin(), held_.end(), int64_t{0});
  note_peak();
}

void MemoryLedger::note_peak() {
  if (total_ <= peak_)
    return;
  peak_ = total_;
  at_peak_ = held_;
  // What a pass lets go of as it runs was kept for it.
  int64_t& transient = at_peak_[static_cast<size_t>(Holding::Transient)];
  if (transient < 0)
    at_peak_[static_cast<size_t>(Holding::Activations)] += std::exchange(transient, 0);
}

void MemoryLedger::add(const Storage& storage, int64_t sign) {
  held_[static_cast<size_t>(holding_of(storage.kind))] += sign * storage.bytes;
  total_ += sign * storage.bytes;
}

void MemoryLedger::drop(const std::vector<uint32_t>& storages) {
  for (uint32_t storage : storages)
    if (++drops_[storage] == layout_->storages_[storage].drops.size())
      add(layout_->storages_[storage], -1);
}

void MemoryLedger::begin(uint32_t instruction) {
  for (uint32_t storage : layout_->changes_[instruction].made)
    add(layout_->storages_[storage], 1);
  note_peak();
}

void MemoryLedger::end(uint32_t instruction) {
  drop(layout_->changes_[instruction].dropped);
  note_peak(); // it may have let go of more while it ran than it has by now
}

void MemoryLedger::delivered(uint32_t send) {
  drop(layout_->changes_[send].delivered);
}

} // namespace piper::compiler
