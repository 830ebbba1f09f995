#include "ir/memory_layout.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;
using Calls = std::vector<CallId>;

class Storages {
public:
  Storages(const PlanSet& set, const ModelSpec& model, const Plan& plan, Routing routing)
      : set_(set), model_(model), plan_(plan), routing_(routing), slots_(plan.slots.size()),
        dropped_by_(plan.slots.size(), kNone) {
    for (uint32_t i = 0; i < plan.instructions.size(); ++i)
      for (SlotId slot : plan.instructions[i].frees)
        dropped_by_[slot.value] = i;
  }

  std::vector<Storage> run() {
    std::map<std::pair<BucketId, bool>, uint32_t> windows; // parameters or gradients -> storage
    for (at_ = 0; at_ < plan_.instructions.size(); ++at_) {
      const Instruction& each = plan_.instructions[at_];
      const bool placed = is_node(each.op) && each.self;
      rows_ = placed ? rows(each.self) : 0;
      group_ = placed ? &set_.groups[each.self.value] : &nowhere_;
      first_made_ = static_cast<uint32_t>(storages_.size());
      const bool gathers = each.op == Opcode::Gather;
      if (goes_forward(each.op))
        forward(each);
      else if (goes_backward(each.op))
        backward(each);
      else if (each.op == Opcode::BackwardWeight)
        backward_weight(each);
      else if (gathers || each.op == Opcode::ZeroGrads)
        windows[{each.buckets[0], gathers}] =
            make(Storage::Kind::Window, bytes_of(each.buckets[0]));
      else if (each.op == Opcode::Release || each.op == Opcode::ReduceScatter)
        close(windows, each);
      else if (each.op == Opcode::Offload)
        offload(each);
      else if (each.op == Opcode::Fetch)
        fetch(each);
      else if (each.op != Opcode::Seed) // that hands out a constant
        for (SlotId slot : each.outputs)
          if (slot)
            if (const uint32_t made = make_value(slot);
                plan_.slots[slot.value].value.kind == ValueKind::Activation)
              store(copy(value(slot), false), made);
      if (each.op == Opcode::Redistribute)
        redistribute(each);
      if (each.op == Opcode::Commit)
        end_iteration();
      if (each.op == Opcode::Send)
        for (uint32_t storage : slots_[each.inputs[0].value])
          send(storage, each);
    }
    return std::move(storages_);
  }

private:
  // ---- storages and their holders

  uint32_t make(Storage::Kind kind, int64_t bytes, std::vector<Storage::Drop> drops = {}) {
    storages_.push_back({kind, bytes, at_, std::move(drops)});
    return static_cast<uint32_t>(storages_.size() - 1);
  }
  /// The slot keeps the storage alive until it is freed.
  void hold(SlotId slot, uint32_t storage) {
    slots_[slot.value].push_back(storage);
    if (dropped_by_[slot.value] != kNone)
      add_drop(storage, {dropped_by_[slot.value], false});
  }
  void add_drop(uint32_t storage, Storage::Drop drop) {
    auto& drops = storages_[storage].drops;
    if (std::find(drops.begin(), drops.end(), drop) == drops.end())
      drops.push_back(drop);
  }
  /// The message shares the slot's memory, or is all that is left of it.
  void send(uint32_t storage, const Instruction& each) {
    const bool moved =
        std::find(each.frees.begin(), each.frees.end(), each.inputs[0]) != each.frees.end();
    if (moved)
      std::erase(storages_[storage].drops, Storage::Drop{at_, false});
    add_drop(storage, {at_, true});
  }
  uint32_t make_value(SlotId slot, int64_t beyond = 0) {
    const int64_t rows = rows_;
    const uint32_t storage =
        make(Storage::Kind::Values, plan_.slots[slot.value].type.bytes(rows) + beyond);
    hold(slot, storage);
    return storage;
  }
  void close(std::map<std::pair<BucketId, bool>, uint32_t>& windows, const Instruction& each) {
    const bool params = each.op == Opcode::Release;
    const auto window = windows.find({each.buckets[0], params});
    if (window == windows.end())
      return;
    add_drop(window->second, {at_, false});
    windows.erase(window);
  }
  int64_t bytes_of(BucketId bucket) const {
    return set_.buckets[bucket.value].numel * size_of(set_.buckets[bucket.value].dtype);
  }
  int64_t bytes_of(ValueId v) const { return type_on(*group_, model_.value(v)).bytes(rows_); }
  int64_t bytes_of(const std::vector<ValueId>& values) const {
    int64_t bytes = 0;
    for (ValueId v : values)
      bytes += bytes_of(v);
    return bytes;
  }
  const CallMemory& memory(CallId call) const { return model_.call(call).memory; }

  /// Of a microbatch, on a rank of the group.
  int64_t rows(GroupId id) const {
    const Group& group = set_.groups[id.value];
    const int64_t even = set_.rows(id);
    return routing_ == Routing::Any && group.layout == Layout::Experts
               ? even * int64_t{group.ways} / int64_t{group.outside}
               : even;
  }

  /// What a rank needs of what was measured of a whole call.
  int64_t share(const RowBytes& bytes) const {
    const auto ways = static_cast<int64_t>(group_->ways);
    const auto part_of = [&](int64_t all) { return (all + ways - 1) / ways; };
    switch (group_->layout) {
    case Layout::Tokens:
      return std::max<int64_t>(0, bytes.fixed + part_of(bytes.per_row * rows_));
    case Layout::Weights:
      return part_of(bytes.at(rows_));
    case Layout::Experts: { // even rows are those of ranks that share them
      const int64_t shared = routing_ == Routing::Even ? int64_t{group_->outside} : 1;
      return std::max<int64_t>(0, part_of(bytes.fixed) +
                                      (bytes.per_row * rows_ + shared - 1) / shared);
    }
    case Layout::Whole:
    case Layout::Partial:
      break;
    }
    return bytes.at(rows_);
  }
  /// `whole`: bytes that a piece of the parameters needs as the whole does.
  int64_t share(const PeakBytes& peak, int64_t whole) const {
    int64_t most = 0;
    for (const RowBytes& moment : peak.moments) {
      int64_t bytes = share(moment);
      if (group_->layout == Layout::Weights)
        bytes +=
            share(RowBytes{std::min(whole, moment.at(rows_)) * (int64_t{group_->ways} - 1), 0});
      most = std::max(most, bytes);
    }
    return most;
  }
  int64_t share_forward(const PeakBytes& peak, const ModelCall& call) const {
    return share(peak, bytes_of(call.outputs));
  }
  /// Gradients of an input that come on several ways are added up two at a time.
  int64_t share_backward(const PeakBytes& peak, const ModelCall& call) const {
    int64_t gradients = 0;
    for (ValueId v : call.inputs)
      gradients += model_.value(v).differentiable ? bytes_of(v) : 0;
    return share(peak, 2 * gradients);
  }

  /// Of a microbatch, in the layout that it was made in or moved to.
  using Copy = std::tuple<ValueId, int32_t, Layout>;
  Copy copy(ValueId v, bool made) const {
    return {v, plan_.instructions[at_].microbatch,
            made ? makes(group_->layout) : reads(group_->layout)};
  }

  void store(const Copy& value, uint32_t storage) {
    stored_[value] = storage;
    stored_in_[storage].push_back(value);
  }

  void offload(const Instruction& each) {
    for (size_t i = 0; i < each.inputs.size(); ++i)
      away_[each.outputs[i].value] = slots_[each.inputs[i].value];
  }
  /// What two chunks shared comes back for each of them.
  void fetch(const Instruction& each) {
    for (size_t i = 0; i < each.inputs.size(); ++i) {
      const SlotId slot = each.outputs[i];
      for (uint32_t old : away_[each.inputs[i].value]) {
        const uint32_t fetched = make(storages_[old].kind, storages_[old].bytes);
        hold(slot, fetched);
        for (const Copy& value : std::exchange(stored_in_[old], {}))
          store(value, fetched);
      }
    }
  }

  /// Beside the value that it makes. A sum that is made in place counts as if it was not.
  void redistribute(const Instruction& each) {
    const Group& from = set_.groups[each.group.value];
    const auto bytes_at = [&](SlotId slot, GroupId group) {
      return plan_.slots[slot.value].type.bytes(rows(group));
    };
    const int64_t given = bytes_at(each.inputs[0], each.group);
    const int64_t made = bytes_at(each.outputs[0], each.self);
    int64_t staged = 0;
    switch (*move_between(from, *group_)) {
    case Move::Slice:
    case Move::AllReduce:
      break;
    case Move::ReduceScatter: // the summands, by rank
      staged = given;
      break;
    case Move::AllGather: // the pieces, by rank
      staged = made;
      break;
    case Move::AllToAll: // the counts of all ranks, or the rows as they are sent
      staged = each.inputs.size() == 1 ? given * std::max(from.ways, group_->ways) : given;
      if (each.inputs.size() > 1)
        send_rows(each, given);
      break;
    }
    add_working(made + staged);
  }

  /// Rows are there until the other ranks have received them, which they have when they meet again.
  void send_rows(const Instruction& each, int64_t bytes) {
    const auto between = std::minmax(each.self, each.group);
    const auto [last, none] = sent_rows_.try_emplace(between);
    if (!none)
      add_drop(last->second, {at_, false});
    last->second = make(Storage::Kind::Working, bytes);
  }
  void end_iteration() {
    for (const auto& [between, rows] : sent_rows_)
      add_drop(rows, {at_, false});
    sent_rows_.clear();
  }

  /// What the instruction goes beyond its storages, `most` being how far beyond what was before.
  void add_working(int64_t most) {
    int64_t made = 0;
    for (uint32_t s = first_made_; s < storages_.size(); ++s)
      made += storages_[s].bytes;
    if (most != made)
      make(Storage::Kind::Working, most - made, {{at_, false}});
  }

  // ---- forward

  void forward(const Instruction& each) {
    const size_t kept = set_.kind == PlanKind::Train ? each.chunks.size() : 0;
    std::map<ValueId, SlotId> inputs, outputs;
    for (SlotId slot : each.inputs)
      inputs[value(slot)] = slot;
    for (size_t o = kept; o < each.outputs.size(); ++o)
      outputs[value(each.outputs[o])] = each.outputs[o];
    int64_t live = 0, most = 0;
    for (size_t c = 0; c < each.chunks.size(); ++c) {
      const SlotId context = kept ? each.outputs[c] : SlotId();
      int64_t saved = 0, locals = 0;
      std::set<ValueId> made, held;
      for (CallId id : each.chunks[c]) {
        const ModelCall& call = model_.call(id);
        const CallMemory& its = call.memory;
        most = std::max(most, live + share_forward(context ? its.forward : its.inference, call));
        for (ValueId v : call.inputs)
          if (context && !made.contains(v) && model_.value(v).differentiable)
            held.insert(v);
        if (context) {
          held.insert(its.keeps.begin(), its.keeps.end());
          saved += share(its.saved);
          live += share(its.saved);
        }
        int64_t outs = share(its.outputs_beyond);
        for (ValueId v : call.outputs) {
          outs += bytes_of(v);
          made.insert(v);
          beyond_[v] = share(its.outputs_beyond);
        }
        locals += outs;
        live += outs;
        most = std::max(most, live);
      }
      // Of what it made, there stays what is handed out, read by later chunks, or kept.
      live -= locals;
      for (ValueId v : made) {
        const bool later = is_read_after(each.chunks, c, v);
        const auto out = outputs.find(v);
        if (out == outputs.end() && !later && !held.contains(v))
          continue;
        const uint32_t storage = out != outputs.end()
                                     ? make_value(out->second, beyond_[v])
                                     : make(Storage::Kind::Saved, bytes_of(v) + beyond_[v],
                                            later ? std::vector<Storage::Drop>{{at_, false}}
                                                  : std::vector<Storage::Drop>());
        live += storages_[storage].bytes;
        store(copy(v, true), storage);
      }
      if (!context)
        continue;
      hold(context, make(Storage::Kind::Saved, saved));
      for (ValueId v : held)
        if (const auto in = inputs.find(v); in != inputs.end() && !made.contains(v)) {
          for (uint32_t storage : slots_[in->second.value])
            hold(context, storage);
        } else if (const auto known = stored_.find(copy(v, made.contains(v)));
                   known != stored_.end()) {
          hold(context, known->second);
        }
    }
    add_working(most);
  }

  bool is_read_after(const std::vector<Calls>& chunks, size_t chunk, ValueId v) const {
    for (size_t c = chunk + 1; c < chunks.size(); ++c)
      for (CallId call : chunks[c]) {
        const auto& inputs = model_.call(call).inputs;
        if (std::find(inputs.begin(), inputs.end(), v) != inputs.end())
          return true;
      }
    return false;
  }

  // ---- backward

  /// What a chunk's calls read from outside of it and make, and which of them lead to a leaf.
  struct Wiring {
    std::set<ValueId> reads, makes;
    std::set<CallId> to_leaf;
  };
  Wiring wire(const Calls& chunk) const {
    Wiring wiring;
    std::set<ValueId> on_the_way;
    for (CallId id : chunk) {
      const ModelCall& call = model_.call(id);
      for (ValueId v : call.inputs) {
        if (!model_.value(v).differentiable)
          continue;
        const bool inside = wiring.makes.contains(v);
        if (!inside)
          wiring.reads.insert(v);
        if (!inside || on_the_way.contains(v))
          wiring.to_leaf.insert(id);
      }
      wiring.makes.insert(call.outputs.begin(), call.outputs.end());
      if (wiring.to_leaf.contains(id))
        on_the_way.insert(call.outputs.begin(), call.outputs.end());
    }
    return wiring;
  }

  void backward(const Instruction& each) {
    const bool halves = each.op == Opcode::BackwardInput;
    const size_t chunks = each.chunks.size();
    std::map<ValueId, std::vector<SlotId>> given; // gradients from outside
    for (size_t i = chunks; i < each.inputs.size(); ++i)
      given[value(each.inputs[i])].push_back(each.inputs[i]);
    std::map<ValueId, SlotId> wanted;
    for (size_t o = halves ? chunks : 0; o < each.outputs.size(); ++o)
      wanted[value(each.outputs[o])] = each.outputs[o];
    std::map<ValueId, int> parts;          // of the gradients that chunks here made
    std::map<ValueId, uint32_t> gradients; // that are outputs -> storage
    int64_t live = 0, most = 0;
    for (size_t c = chunks; c-- > 0;) {
      const Calls& chunk = each.chunks[c];
      const Wiring wiring = wire(chunk);
      const SlotId deferred = halves ? each.outputs[c] : SlotId();
      int64_t kept = 0, sums = 0;
      for (ValueId v : wiring.makes) // a gradient that is several parts is added up first
        if (const size_t n =
                static_cast<size_t>(parts[v]) + (given.contains(v) ? given[v].size() : 0);
            n > 1)
          sums += bytes_of(v);
      live += sums;
      most = std::max(most, live);
      std::set<ValueId> inside; // gradients that the engine holds
      std::set<ValueId> held, held_gradients;
      for (auto call = chunk.rbegin(); call != chunk.rend(); ++call) {
        const ModelCall& its = model_.call(*call);
        const CallMemory& memory = its.memory;
        if (deferred && !wiring.to_leaf.contains(*call)) { // waits as a whole
          kept += share(memory.saved);
          held.insert(memory.keeps.begin(), memory.keeps.end());
          for (ValueId v : its.outputs)
            if (inside.contains(v) || given.contains(v) || parts[v] > 0)
              held_gradients.insert(v);
          continue;
        }
        most = std::max(
            most, live + share_backward(deferred ? memory.backward_input : memory.backward, its));
        live -= share(memory.saved);
        if (deferred) {
          kept += share(memory.deferred);
          live += share(memory.deferred);
          held.insert(memory.defers.begin(), memory.defers.end());
          held_gradients.insert(memory.defers_gradients.begin(), memory.defers_gradients.end());
        }
        for (ValueId v : its.outputs)
          if (inside.erase(v) && !held_gradients.contains(v))
            live -= bytes_of(v);
        bool first = true;
        for (ValueId v : its.inputs)
          if (model_.value(v).differentiable && inside.insert(v).second) {
            live += bytes_of(v) + (first ? share(memory.gradients_beyond) : 0);
            beyond_gradient_[v] = first ? share(memory.gradients_beyond) : 0;
            first = false;
          }
        most = std::max(most, live);
      }
      live -= sums;
      // The gradients of its leaves: to where others have put some already, as a sum.
      for (ValueId v : wiring.reads) {
        const bool here = made_before(each.chunks, c, v);
        const auto out = wanted.find(v);
        if (here) {
          ++parts[v];
        } else if (out != wanted.end() && gradients.contains(v)) {
          most = std::max(most, live + bytes_of(v));
          live -= bytes_of(v);
        } else if (out != wanted.end()) {
          gradients[v] = make_value(out->second, beyond_gradient_[v]);
        } else {
          live -= bytes_of(v);
        }
      }
      if (deferred) {
        hold(deferred, make(Storage::Kind::Saved, kept));
        for (ValueId v : held)
          if (const auto known = stored_.find(copy(v, wiring.makes.contains(v)));
              known != stored_.end())
            hold(deferred, known->second);
        for (ValueId v : held_gradients)
          if (const auto outside = given.find(v); outside != given.end() && parts[v] == 0) {
            for (uint32_t storage : slots_[outside->second[0].value])
              hold(deferred, storage);
          } else if (const auto made = gradients.find(v); made != gradients.end()) {
            hold(deferred, made->second);
          } else {
            hold(deferred, make(Storage::Kind::Saved, bytes_of(v)));
          }
      }
      // What only this chunk kept of what was inside of it.
      for (ValueId v : wiring.makes)
        if (!held.contains(v))
          if (const auto known = stored_.find(copy(v, true)); known != stored_.end())
            if (const Storage& storage = storages_[known->second];
                storage.drops == std::vector<Storage::Drop>{{at_, false}})
              live -= storage.bytes;
    }
    add_working(std::max(most, live));
  }

  bool made_before(const std::vector<Calls>& chunks, size_t chunk, ValueId v) const {
    for (size_t c = 0; c < chunk; ++c)
      for (CallId call : chunks[c])
        if (model_.value(v).producer == call)
          return true;
    return false;
  }

  void backward_weight(const Instruction& each) {
    int64_t live = 0, most = 0;
    for (auto chunk = each.chunks.rbegin(); chunk != each.chunks.rend(); ++chunk) {
      const Wiring wiring = wire(*chunk);
      std::set<ValueId> inside; // gradients that the engine holds
      for (auto call = chunk->rbegin(); call != chunk->rend(); ++call) {
        const CallMemory& its = memory(*call);
        const bool half = wiring.to_leaf.contains(*call);
        most = std::max(most, live + (half ? share(its.backward_weight, 0)
                                           : share_backward(its.backward, model_.call(*call))));
        live -= share(half ? its.deferred : its.saved);
        if (half)
          continue;
        for (ValueId v : model_.call(*call).outputs)
          if (inside.erase(v))
            live -= bytes_of(v);
        for (ValueId v : model_.call(*call).inputs)
          if (model_.value(v).differentiable && inside.insert(v).second)
            live += bytes_of(v);
      }
    }
    add_working(most);
  }

  ValueId value(SlotId slot) const { return ValueId(plan_.slots[slot.value].value.subject); }

  const PlanSet& set_;
  const ModelSpec& model_;
  const Plan& plan_;
  const Routing routing_;
  std::vector<Storage> storages_;
  std::vector<std::vector<uint32_t>> slots_;        ///< what each slot keeps alive
  std::vector<uint32_t> dropped_by_;                ///< of each slot
  std::map<Copy, uint32_t> stored_;                 ///< of an activation, the storage that it is in
  std::map<uint32_t, std::vector<Copy>> stored_in_; ///< the inverse
  std::map<uint32_t, std::vector<uint32_t>> away_;  ///< of a slot, the storages that left for it
  /// Of two layouts, the rows that were sent last from one to the other.
  std::map<std::pair<GroupId, GroupId>, uint32_t> sent_rows_;
  std::map<ValueId, int64_t> beyond_, beyond_gradient_;
  uint32_t at_ = 0, first_made_ = 0;
  int64_t rows_ = 0;             ///< of the instruction at hand, and
  const Group* group_ = nullptr; ///< … whose member runs it
  const Group nowhere_;
};

} // namespace

std::vector<Storage> storages_of(const PlanSet& set, const ModelSpec& model, const Plan& plan,
                                 Routing routing) {
  return Storages(set, model, plan, routing).run();
}

StateBytes state_of(const Bucket& bucket, const std::vector<StateKind>& kinds) {
  const int64_t bytes = bucket.numel * size_of(bucket.dtype);
  const auto kept = [&](StateKind kind) {
    return is_sharded(bucket, kind) ? bytes / bucket.shards : bytes;
  };
  StateBytes state;
  if (!bucket.offload_params)
    state.params = kept(StateKind::Param);
  state.gradients = kept(StateKind::Grad);
  for (StateKind kind : kinds) {
    if ((kind == StateKind::Moment1 || kind == StateKind::Moment2) && !bucket.offload_optimizer)
      state.moments += kept(kind);
    else if (kind == StateKind::Step)
      state.moments += size_of(DType::F64);
  }
  return state;
}

int64_t mirror_of(const Bucket& bucket, const std::vector<StateKind>& kinds) {
  const int64_t bytes = bucket.shard_numel() * size_of(bucket.dtype);
  int64_t sum = bucket.offload_params ? bytes : 2 * bytes; // parameters and gradients
  for (StateKind kind : kinds)
    if (kind == StateKind::Step)
      sum += size_of(DType::F64);
    else if (kind != StateKind::Param && kind != StateKind::Grad && !bucket.offload_optimizer)
      sum += bytes;
  return sum;
}

} // namespace piper::ir
