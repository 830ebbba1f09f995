#include "actors/executor/bound_plan.h"

#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace piper::executor {

using namespace ir;

void BoundPlan::append(std::unique_ptr<BoundInstruction> instruction, BoundStream& stream,
                       const std::vector<Event*>& waits, Event* records) {
  BoundInstruction* task = instruction.get();
  task->current = &stream.current;
  task->waited = stream.compute ? &stream.waited : nullptr;
  for (Event* event : waits)
    program.push_back({Operation::Kind::Wait, stream.stream.get(), task, event});
  program.push_back({Operation::Kind::Run, stream.stream.get(), task, nullptr});
  if (records)
    program.push_back({Operation::Kind::Record, stream.stream.get(), task, records});
  stream.operations += waits.size() + 1 + (records ? 1 : 0);
  instructions.push_back(std::move(instruction));
}

void BoundPlan::drop_tensors() {
  for (auto& instruction : instructions)
    instruction->clear();
  for (at::Tensor& slot : slots)
    slot.reset();
  for (ChunkContext& context : contexts)
    context.clear();
  if (state)
    state->close_windows();
}

namespace {

/// The values that a chunk reads from outside, in the order in which it first does, and those that
/// it makes.
struct Wiring {
  std::vector<ValueId> reads, makes;
};

bool contains(const std::vector<ValueId>& list, ValueId value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

std::vector<Wiring> wire(const ModelSpec& model, const std::vector<std::vector<CallId>>& chunks) {
  std::vector<Wiring> wirings;
  for (const auto& chunk : chunks) {
    Wiring& wiring = wirings.emplace_back();
    for (CallId call : chunk) {
      for (ValueId v : model.call(call).inputs)
        if (!contains(wiring.makes, v) && !contains(wiring.reads, v))
          wiring.reads.push_back(v);
      const auto& outputs = model.call(call).outputs;
      wiring.makes.insert(wiring.makes.end(), outputs.begin(), outputs.end());
    }
  }
  return wirings;
}

bool read_after(const std::vector<Wiring>& wirings, size_t chunk, ValueId value) {
  return std::any_of(wirings.begin() + static_cast<ptrdiff_t>(chunk) + 1, wirings.end(),
                     [&](const Wiring& later) { return contains(later.reads, value); });
}

class Binder {
public:
  Binder(std::shared_ptr<const PlanSet> plans, const BindContext& context)
      : plans_(*plans), context_(context), model_(*context.model.spec),
        role_(plans->role_of(context.options.index)), plan_(plans->plans[role_.value]),
        bound_(std::make_shared<BoundPlan>()) {
    bound_->plans = std::move(plans);
  }
  Result<std::shared_ptr<BoundPlan>> bind();

private:
  using Bound = Result<std::unique_ptr<BoundInstruction>>;
  void bind_streams();
  void find_origins();
  void find_roots();
  Bound bind(const Instruction& instruction);
  Bound bind_input(const Instruction& instruction);
  Bound bind_forward(const Instruction& instruction);
  Bound bind_offload(const Instruction& instruction);
  Bound bind_seed(const Instruction& instruction);
  Bound bind_backward(const Instruction& instruction);
  Bound bind_backward_weight(const Instruction& instruction);
  Bound bind_add(const Instruction& instruction);
  Bound bind_loss(const Instruction& instruction);
  Bound bind_send(const Instruction& instruction);
  Bound bind_recv(const Instruction& instruction);
  Bound bind_redistribute(const Instruction& instruction);
  Bound bind_collective(const Instruction& instruction);
  Bound bind_gather(const Instruction& instruction);
  Bound bind_release(const Instruction& instruction);
  Bound bind_zero_grads(const Instruction& instruction);
  Bound bind_commit(const Instruction& instruction);
  Bound bind_update(const Instruction& instruction);
  Bound bind_mirror(const Instruction& instruction);
  Bound bind_state(const Instruction& instruction);

  at::Tensor* slot(SlotId id) { return &bound_->slots[id.value]; }
  const Slot& spec(SlotId id) const { return plan_.slots[id.value]; }
  /// Kept by a chunk for a later pass of it; no tensor.
  bool is_context(SlotId id) const { return is_kept(spec(id).value.kind); }
  ChunkContext* context(SlotId id) { return &bound_->contexts[origin_[id.value].value]; }
  ValueId value(SlotId id) const { return ValueId(spec(id).value.subject); }
  Result<DeviceIndex> peer(const Instruction& instruction) const;
  Result<BucketState*> bucket(BucketId id) const;
  Result<const BucketState*> keeper(const Instruction& instruction) const;
  Result<FlatRange> range(const StateRange& range) const;
  transport::Key key(const Instruction& instruction) const {
    return {plans_.epoch, instruction.edge.value, instruction.microbatch};
  }
  int rank_in(GroupId group) const { return plans_.rank_in(group, context_.options.index); }
  /// Who takes part in a collective, by rank.
  std::span<const DeviceIndex> members(const Instruction& instruction) {
    const Team team = plans_.team_of(instruction, rank_in(instruction.group));
    return bound_->teams.try_emplace(team, plans_.members(team)).first->second;
  }
  /// The piece of each call that this device runs on the group.
  Piece piece(GroupId id) const {
    const Group& group = plans_.groups[id.value];
    return {group.part(rank_in(id)), group.parts()};
  }
  std::string name(const Instruction& instruction) const {
    return plans_.name(role_, instruction, &model_);
  }
  std::string device() const { return fmt::format("device {}, ", context_.options.index); }

  const PlanSet& plans_;
  const BindContext& context_;
  const ModelSpec& model_;
  const RoleId role_;
  const Plan& plan_;
  std::shared_ptr<BoundPlan> bound_;
  std::vector<SlotId> origin_; ///< of each slot, the one whose contents were moved there
  std::set<SlotId> moved_;     ///< what chunks keep that is moved
  /// Parameters and buffers, which do not move with what is kept.
  std::shared_ptr<FixedStorages> fixed_ = std::make_shared<FixedStorages>();
  std::map<SlotId, std::vector<ValueId>> roots_; ///< of each Saved slot: values with a gradient
};

Result<std::shared_ptr<BoundPlan>> Binder::bind() {
  bound_->state = context_.state(plans_.epoch);
  bound_->slots.resize(plan_.slots.size());
  bound_->contexts.resize(plan_.slots.size());
  bind_streams();
  find_origins();
  find_roots();
  std::vector<std::string> recorder(plan_.events);
  for (uint32_t e = 0; e < plan_.events; ++e)
    bound_->events.push_back(context_.backend.make_event());
  for (const Instruction& instruction : plan_.instructions)
    if (instruction.records)
      recorder[instruction.records.value] = name(instruction);

  for (const Instruction& instruction : plan_.instructions) {
    std::string called = name(instruction);
    auto made = bind(instruction);
    if (!made.ok()) {
      Error error = std::move(made).error();
      error.where = called + (error.where.empty() ? "" : ": " + error.where);
      return error;
    }
    std::unique_ptr<BoundInstruction> task = *std::move(made);
    task->state = &context_.run;
    task->where = device() + called;
    const char* made_here = instruction.op == Opcode::Forward || instruction.op == Opcode::Recompute
                                ? "activations of "
                            : adds_to_gradients(instruction.op) ? "gradients of "
                                                                : "tensors of ";
    task->holder = &context_.account.holder(made_here + called);
    for (SlotId id : instruction.frees) {
      const bool moves = instruction.op == Opcode::Offload || instruction.op == Opcode::Fetch;
      if (is_context(id) && !moves) // or it lives on under another name
        task->free_contexts.push_back(context(id));
      else if (!is_context(id))
        task->free_tensors.push_back(slot(id));
    }
    std::vector<Event*> waits;
    for (EventId id : instruction.waits) {
      waits.push_back(bound_->events[id.value].get());
      task->waits.emplace_back(waits.back(), recorder[id.value]);
    }
    Event* records =
        instruction.records ? bound_->events[instruction.records.value].get() : nullptr;
    bound_->append(std::move(task), *bound_->streams[instruction.stream], waits, records);
  }
  return std::move(bound_);
}

void Binder::bind_streams() {
  std::vector<bool> compute(plan_.streams.size());
  for (const Instruction& instruction : plan_.instructions)
    if (is_compute(instruction.op) || instruction.op == Opcode::Update ||
        instruction.op == Opcode::UpdateMirror)
      compute[instruction.stream] = true;
  for (size_t s = 0; s < compute.size(); ++s) {
    auto& stream = bound_->streams.emplace_back(std::make_unique<BoundPlan::BoundStream>());
    stream->stream = context_.stream(plan_.streams[s], compute[s]);
    stream->compute = compute[s];
  }
}

/// What is moved to another memory and back keeps its context.
void Binder::find_origins() {
  for (uint32_t s = 0; s < plan_.slots.size(); ++s)
    origin_.emplace_back(s);
  for (const Instruction& instruction : plan_.instructions)
    if (instruction.op == Opcode::Offload || instruction.op == Opcode::Fetch)
      for (size_t i = 0; i < instruction.inputs.size(); ++i) {
        origin_[instruction.outputs[i].value] = origin_[instruction.inputs[i].value];
        if (instruction.op == Opcode::Offload && is_context(instruction.inputs[i]))
          moved_.insert(instruction.inputs[i]);
      }
  for (const Instruction& instruction : plan_.instructions) // what it leaves its forward has saved
    if (instruction.op == Opcode::BackwardInput)
      for (size_t c = 0; c < instruction.chunks.size(); ++c)
        if (moved_.contains(instruction.outputs[c]))
          moved_.insert(origin_[instruction.inputs[c].value]);
  if (moved_.empty() || !bound_->state)
    return;
  for (const BucketState& bucket : bound_->state->buckets())
    if (bucket.spec)
      fixed_->insert(bucket.param.storage().unsafeGetStorageImpl());
}

/// Which outputs of a chunk get a gradient is known from its Backward: from outside the
/// instruction, or from a later chunk of it.
void Binder::find_roots() {
  for (const Instruction& instruction : plan_.instructions) {
    if (!goes_backward(instruction.op))
      continue;
    const size_t chunks = instruction.chunks.size();
    auto wirings = wire(model_, instruction.chunks);
    std::vector<ValueId> given;
    for (size_t i = chunks; i < instruction.inputs.size(); ++i)
      given.push_back(value(instruction.inputs[i]));
    for (size_t c = 0; c < chunks; ++c)
      for (ValueId v : wirings[c].makes)
        if (contains(given, v) || (model_.value(v).differentiable && read_after(wirings, c, v)))
          roots_[origin_[instruction.inputs[c].value]].push_back(v);
  }
}

Binder::Bound Binder::bind(const Instruction& instruction) {
  switch (instruction.op) {
  case Opcode::Input:
    return bind_input(instruction);
  case Opcode::Forward:
  case Opcode::Recompute:
    return bind_forward(instruction);
  case Opcode::Seed:
    return bind_seed(instruction);
  case Opcode::Backward:
  case Opcode::BackwardInput:
    return bind_backward(instruction);
  case Opcode::BackwardWeight:
    return bind_backward_weight(instruction);
  case Opcode::Offload:
  case Opcode::Fetch:
    return bind_offload(instruction);
  case Opcode::Add:
    return bind_add(instruction);
  case Opcode::Loss:
    return bind_loss(instruction);
  case Opcode::Send:
    return bind_send(instruction);
  case Opcode::Recv:
    return bind_recv(instruction);
  case Opcode::AllReduce:
  case Opcode::ReduceScatter:
  case Opcode::AllGather:
    return bind_collective(instruction);
  case Opcode::Gather:
    return bind_gather(instruction);
  case Opcode::Release:
    return bind_release(instruction);
  case Opcode::ZeroGrads:
    return bind_zero_grads(instruction);
  case Opcode::Redistribute:
    return bind_redistribute(instruction);
  case Opcode::Commit:
    return bind_commit(instruction);
  case Opcode::Update:
  case Opcode::UpdateMirror:
    return bind_update(instruction);
  case Opcode::SendMirror:
  case Opcode::RecvMirror:
    return bind_mirror(instruction);
  case Opcode::CopyState:
  case Opcode::SendState:
  case Opcode::RecvState:
    return bind_state(instruction);
  }
  return internal_error("an opcode that the executor doesn't know");
}

Binder::Bound Binder::bind_input(const Instruction& instruction) {
  auto bound = std::make_unique<InputInstruction>();
  const SlotId target = instruction.outputs.at(0);
  const int rank = rank_in(instruction.self);
  bound->data = &context_.model.data;
  bound->request = {.input = model_.value(value(target)).name,
                    .first_row = plans_.first_row(instruction.self, rank, instruction.microbatch),
                    .rows = plans_.rows(instruction.self),
                    .held_out = plans_.kind == PlanKind::Eval};
  bound->type = spec(target).type;
  bound->shape = bound->type.shape(bound->request.rows);
  bound->target = slot(target);
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_forward(const Instruction& instruction) {
  auto bound = std::make_unique<ForwardInstruction>();
  const bool train = plans_.kind == PlanKind::Train;
  const size_t saved = train ? instruction.chunks.size() : 0;
  auto wirings = wire(model_, instruction.chunks);

  std::map<ValueId, at::Tensor*> sources, targets;
  for (SlotId id : instruction.inputs)
    sources[value(id)] = slot(id);
  for (size_t i = saved; i < instruction.outputs.size(); ++i)
    targets[value(instruction.outputs[i])] = slot(instruction.outputs[i]);
  size_t made = 0;
  for (const Wiring& wiring : wirings)
    made += wiring.makes.size();
  bound->internals.reserve(made); // never moved

  for (size_t c = 0; c < wirings.size(); ++c) {
    ForwardChunk& chunk = bound->chunks.emplace_back();
    const SlotId context = train ? instruction.outputs[c] : SlotId();
    chunk.context = context ? this->context(context) : nullptr;
    if (context && moved_.contains(context))
      chunk.context->saved = std::make_shared<SavedTensors>(fixed_);
    std::map<ValueId, uint32_t> locals;
    auto local = [&](ValueId v) {
      return locals.try_emplace(v, static_cast<uint32_t>(locals.size())).first->second;
    };
    size_t leaves = 0;
    for (ValueId v : wirings[c].reads) {
      auto source = sources.find(v);
      if (source == sources.end())
        return internal_error(
            fmt::format("reads '{}', which is not among its inputs", model_.value(v).name));
      const bool differentiable = model_.value(v).differentiable;
      chunk.inputs.push_back({source->second, local(v), differentiable});
      leaves += differentiable;
    }
    for (CallId id : instruction.chunks[c]) {
      const ModelCall& spec = model_.call(id);
      PIPER_TRY(auto module,
                context_.module(context_.model.call_module[id.value], piece(instruction.self)));
      ForwardChunk::Call& call = chunk.calls.emplace_back();
      call.name = spec.name;
      call.forward = &module->built.forward;
      for (ValueId v : spec.inputs)
        call.inputs.push_back(local(v));
      for (ValueId v : spec.outputs)
        call.outputs.push_back(local(v));
      call.arguments.resize(spec.inputs.size());
      if (!moved_.empty())
        add_buffers(*module, *fixed_);
      bound_->modules.push_back(std::move(module));
    }
    for (ValueId v : wirings[c].makes) {
      auto target = targets.find(v);
      at::Tensor* to = target != targets.end() ? target->second : nullptr;
      if (!to && read_after(wirings, c, v))
        to = &bound->internals.emplace_back();
      if (to) {
        chunk.outputs.push_back({local(v), to});
        sources[v] = to;
        targets.erase(v);
      }
    }
    if (chunk.context) {
      for (ValueId v : roots_[context])
        chunk.roots.push_back(local(v));
      chunk.context->leaves.resize(leaves);
      chunk.context->roots.resize(chunk.roots.size());
    }
    chunk.locals.resize(locals.size());
  }
  if (!targets.empty())
    return internal_error(fmt::format("its calls don't make '{}', which is among its outputs",
                                      model_.value(targets.begin()->first).name));
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_offload(const Instruction& instruction) {
  auto bound = std::make_unique<OffloadInstruction>();
  bound->pool = instruction.op == Opcode::Offload ? &context_.pool : nullptr;
  for (size_t i = 0; i < instruction.inputs.size(); ++i)
    if (is_context(instruction.inputs[i]))
      bound->contexts.push_back(context(instruction.inputs[i]));
    else
      bound->tensors.push_back({slot(instruction.inputs[i]), slot(instruction.outputs[i])});
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_seed(const Instruction& instruction) {
  auto bound = std::make_unique<SeedInstruction>();
  const SlotId target = instruction.outputs.at(0);
  HolderScope scope(&context_.account.holder("constants"));
  bound->scale = at::scalar_tensor(instruction.scale, to_scalar_type(spec(target).type.dtype));
  bound->scale = bound->scale.view(spec(target).type.shape(1));
  bound->target = slot(target);
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_backward(const Instruction& instruction) {
  auto bound = std::make_unique<BackwardInstruction>();
  const size_t chunks = instruction.chunks.size();
  auto wirings = wire(model_, instruction.chunks);

  std::map<ValueId, std::vector<at::Tensor*>> parts; // of the gradients of what the chunks give out
  for (size_t i = chunks; i < instruction.inputs.size(); ++i)
    parts[value(instruction.inputs[i])].push_back(slot(instruction.inputs[i]));
  std::map<ValueId, at::Tensor*> targets;
  const size_t deferred = instruction.op == Opcode::BackwardInput ? chunks : 0;
  for (size_t i = deferred; i < instruction.outputs.size(); ++i)
    if (const SlotId id = instruction.outputs[i]; !targets.try_emplace(value(id), slot(id)).second)
      return internal_error(
          fmt::format("has two outputs for the gradient of '{}'", model_.value(value(id)).name));
  size_t reads = 0;
  for (const Wiring& wiring : wirings)
    reads += wiring.reads.size();
  bound->internals.reserve(reads); // never moved

  // Last chunk first, as they run: by the time of a chunk, all later ones have added to `parts`.
  std::set<ValueId> filled;
  bound->chunks.resize(chunks);
  for (size_t c = chunks; c-- > 0;) {
    BackwardChunk& chunk = bound->chunks[c];
    const SlotId context = instruction.inputs[c];
    chunk.context = this->context(context);
    if (deferred && instruction.outputs[c])
      chunk.deferred = this->context(instruction.outputs[c]);
    if (chunk.deferred && moved_.contains(instruction.outputs[c]))
      chunk.deferred->saved = std::make_shared<SavedTensors>(fixed_);
    for (ValueId v : roots_[origin_[context.value]])
      chunk.roots.push_back({parts[v]});
    chunk.gradients.resize(chunk.roots.size());
    for (ValueId v : wirings[c].reads) {
      if (!model_.value(v).differentiable)
        continue;
      const bool inside = std::any_of(wirings.begin(), wirings.begin() + static_cast<ptrdiff_t>(c),
                                      [&](const Wiring& w) { return contains(w.makes, v); });
      auto target = targets.find(v);
      if (inside)
        parts[v].push_back(&bound->internals.emplace_back());
      chunk.leaves.push_back(inside                    ? parts[v].back()
                             : target != targets.end() ? target->second
                                                       : nullptr);
      filled.insert(v);
    }
  }
  for (const auto& [v, target] : targets)
    if (!filled.contains(v))
      return internal_error(fmt::format("makes the gradient of '{}', which none of its calls reads",
                                        model_.value(v).name));
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_backward_weight(const Instruction& instruction) {
  auto bound = std::make_unique<BackwardWeightInstruction>();
  for (SlotId id : instruction.inputs)
    bound->chunks.push_back(context(id));
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_add(const Instruction& instruction) {
  auto bound = std::make_unique<AddInstruction>();
  for (SlotId id : instruction.inputs)
    bound->parts.push_back(slot(id));
  bound->target = slot(instruction.outputs.at(0));
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_loss(const Instruction& instruction) {
  auto bound = std::make_unique<LossInstruction>();
  bound->loss = slot(instruction.inputs.at(0));
  bound->microbatch = static_cast<size_t>(std::max(0, instruction.microbatch));
  bound_->loss_count = std::max(bound_->loss_count, bound->microbatch + 1);
  return Bound(std::move(bound));
}

Result<DeviceIndex> Binder::peer(const Instruction& instruction) const {
  const int rank = rank_in(instruction.self);
  const auto& devices = plans_.groups[instruction.group.value].devices;
  if (rank < 0 || static_cast<size_t>(rank) >= devices.size())
    return internal_error(fmt::format("has no peer for rank {} of g{} in g{}", rank,
                                      instruction.self.value, instruction.group.value));
  return devices[static_cast<size_t>(rank)];
}

Binder::Bound Binder::bind_send(const Instruction& instruction) {
  auto bound = std::make_unique<SendInstruction>();
  const SlotId source = instruction.inputs.at(0);
  PIPER_TRY(bound->to, peer(instruction));
  bound->key = key(instruction);
  bound->source = slot(source);
  bound->last_use = std::find(instruction.frees.begin(), instruction.frees.end(), source) !=
                    instruction.frees.end();
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_recv(const Instruction& instruction) {
  auto bound = std::make_unique<RecvInstruction>();
  const SlotId target = instruction.outputs.at(0);
  const TensorType& type = spec(target).type;
  const int64_t rows = plans_.rows(instruction.self);
  PIPER_TRY(bound->from, peer(instruction));
  bound->key = key(instruction);
  bound->target = slot(target);
  bound->shape = type.shape(rows);
  bound->dtype = to_scalar_type(type.dtype);
  bound->bytes = static_cast<size_t>(type.bytes(rows));
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_redistribute(const Instruction& instruction) {
  const SlotId source = instruction.inputs.at(0), target = instruction.outputs.at(0);
  const Group &from = plans_.groups[instruction.group.value],
              &to = plans_.groups[instruction.self.value];
  const std::optional<Move> move = move_between(from, to);
  if (!move)
    return internal_error(
        fmt::format("has no way from {} to {}", to_string(from.layout), to_string(to.layout)));
  const std::span<const DeviceIndex> block = members(instruction);
  const auto self = std::find(block.begin(), block.end(), context_.options.index);
  auto fill = [&](RedistributeInstruction& bound) {
    bound.source = slot(source);
    bound.target = slot(target);
    bound.last_use = std::find(instruction.frees.begin(), instruction.frees.end(), source) !=
                     instruction.frees.end();
    bound.block = block;
    bound.rank = static_cast<size_t>(self - block.begin());
    bound.key = key(instruction);
  };
  if (*move == Move::Slice) {
    auto bound = std::make_unique<SliceTokensInstruction>();
    fill(*bound);
    return Bound(std::move(bound));
  }
  if (*move != Move::AllToAll) {
    auto bound = std::make_unique<SumOrGatherInstruction>();
    fill(*bound);
    bound->move = *move;
    return Bound(std::move(bound));
  }
  auto bound = std::make_unique<AllToAllInstruction>();
  fill(*bound);
  bound->to_experts = to.layout == Layout::Experts;
  bound->sharers = (bound->to_experts ? to : from).outside;
  if (!model_.value(value(target)).is_counts) {
    bound->sent_counts = slot(instruction.inputs.at(1));
    bound->received_counts = slot(instruction.inputs.at(2));
  }
  return Bound(std::move(bound));
}

Result<BucketState*> Binder::bucket(BucketId id) const {
  BucketState* found = nullptr;
  if (bound_->state && id.value < bound_->state->buckets().size())
    found = &bound_->state->buckets()[id.value];
  if (!found || !found->spec)
    return internal_error(fmt::format("uses bucket {}, which this device doesn't hold", id.value));
  return found;
}

Binder::Bound Binder::bind_collective(const Instruction& instruction) {
  PIPER_TRY(BucketState * state, bucket(instruction.buckets.at(0)));
  if (instruction.op == Opcode::ReduceScatter && state->is_sharded(StateKind::Grad)) {
    auto bound = std::make_unique<ShardGradsInstruction>();
    bound->bucket = state;
    bound->key = key(instruction);
    bound->group = members(instruction);
    return Bound(std::move(bound));
  }
  auto bound = std::make_unique<CollectiveInstruction>();
  using Kind = CollectiveInstruction::Kind;
  bound->kind = instruction.op == Opcode::AllReduce       ? Kind::AllReduce
                : instruction.op == Opcode::ReduceScatter ? Kind::ReduceScatter
                                                          : Kind::AllGather;
  bound->key = key(instruction);
  bound->group = members(instruction);
  bound->range = instruction.op == Opcode::AllReduce   ? state->shard(StateKind::Grad)
                 : instruction.op == Opcode::AllGather ? state->range(StateKind::Param)
                                                       : state->range(StateKind::Grad);
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_gather(const Instruction& instruction) {
  auto bound = std::make_unique<GatherInstruction>();
  PIPER_TRY(bound->bucket, bucket(instruction.buckets.at(0)));
  bound->memory = &context_.account.holder("gathered parameters");
  bound->key = key(instruction);
  bound->group = members(instruction);
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_release(const Instruction& instruction) {
  auto bound = std::make_unique<ReleaseInstruction>();
  PIPER_TRY(bound->bucket, bucket(instruction.buckets.at(0)));
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_zero_grads(const Instruction& instruction) {
  auto bound = std::make_unique<ZeroGradsInstruction>();
  PIPER_TRY(bound->bucket, bucket(instruction.buckets.at(0)));
  bound->memory = &context_.account.holder("whole gradients");
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_commit(const Instruction& instruction) {
  auto bound = std::make_unique<CommitInstruction>();
  bound->key = key(instruction);
  bound->world = members(instruction);
  bound->clip_norm = context_.options.optimizer.clip_norm;
  for (BucketId id : instruction.buckets) {
    PIPER_TRY(BucketState * state, bucket(id));
    if (state->counts)
      bound->slices.push_back(state->slice(StateKind::Grad));
  }
  return Bound(std::move(bound));
}

Binder::Bound Binder::bind_update(const Instruction& instruction) {
  auto bound = std::make_unique<UpdateInstruction>();
  PIPER_TRY(const BucketState* state, keeper(instruction));
  if (state->spec->fused_update && context_.options.optimizer.clip_norm > 0)
    return user_error("it does not wait for the gradient norm, which is clipped: that takes all "
                      "gradients before the first update",
                      {}, "train without clip_norm, or leave out the fuse of updates");
  bound->optimizer = &context_.options.optimizer;
  bound->grad = state->range(StateKind::Grad);
  bound->owned_begin = state->is_sharded(StateKind::Grad) ? 0 : state->owned_begin;
  bound->owned_param = state->shard(StateKind::Param);
  if (state->moment1.defined())
    bound->moment1 = state->range(StateKind::Moment1);
  if (state->moment2.defined())
    bound->moment2 = state->range(StateKind::Moment2);
  if (state->step.defined())
    bound->step = state->step.mutable_data_ptr<double>();
  return Bound(std::move(bound));
}

/// The bucket that the instruction works on, or the mirror of it.
Result<const BucketState*> Binder::keeper(const Instruction& instruction) const {
  const BucketId id = instruction.buckets.at(0);
  uint32_t mirror = 0;
  if (instruction.op == Opcode::RecvMirror || instruction.op == Opcode::UpdateMirror) {
    const auto& all = plans_.buckets[id.value].mirrors;
    const auto at = std::find(all.begin(), all.end(), instruction.self);
    mirror = static_cast<uint32_t>(at - all.begin()) + 1;
  }
  const BucketState* found = bound_->state ? bound_->state->find(id, mirror) : nullptr;
  if (!found)
    return internal_error(fmt::format("uses {}bucket {}, which this device doesn't hold",
                                      mirror ? fmt::format("mirror {} of ", mirror) : "",
                                      id.value));
  return found;
}

/// What is sent does not change before all have it: the commit waits for them.
Binder::Bound Binder::bind_mirror(const Instruction& instruction) {
  if (instruction.op == Opcode::SendMirror) {
    auto bound = std::make_unique<SendStateInstruction>();
    PIPER_TRY(const BucketState* state, keeper(instruction));
    PIPER_TRY(bound->to, peer(instruction));
    bound->key = key(instruction);
    bound->array = state->kept(StateKind::Grad);
    bound->source = state->shard(StateKind::Grad);
    return Bound(std::move(bound));
  }
  auto bound = std::make_unique<RecvStateInstruction>();
  PIPER_TRY(const BucketState* state, keeper(instruction));
  PIPER_TRY(bound->from, peer(instruction));
  bound->key = key(instruction);
  bound->target = state->range(StateKind::Grad);
  return Bound(std::move(bound));
}

Result<FlatRange> Binder::range(const StateRange& range) const {
  auto state = context_.state(range.epoch);
  if (!state)
    return internal_error(fmt::format("this device has no state of epoch {}", range.epoch));
  if (range.epoch != plans_.epoch)
    bound_->previous = state;
  return state->range(range);
}

Binder::Bound Binder::bind_state(const Instruction& instruction) {
  if (instruction.op == Opcode::CopyState) {
    auto bound = std::make_unique<CopyStateInstruction>();
    PIPER_TRY(bound->source, range(instruction.source));
    PIPER_TRY(bound->target, range(instruction.target));
    if (bound->source.bytes() != bound->target.bytes())
      return internal_error(
          fmt::format("copies {} bytes to {}", bound->source.bytes(), bound->target.bytes()));
    return Bound(std::move(bound));
  }
  if (instruction.op == Opcode::SendState) {
    auto bound = std::make_unique<SendStateInstruction>();
    PIPER_TRY(bound->source, range(instruction.source));
    bound->array = context_.state(instruction.source.epoch)
                       ->find(instruction.source.bucket, instruction.source.mirror)
                       ->kept(instruction.source.kind);
    bound->key = key(instruction);
    bound->to = instruction.device;
    return Bound(std::move(bound));
  }
  auto bound = std::make_unique<RecvStateInstruction>();
  PIPER_TRY(bound->target, range(instruction.target));
  bound->key = key(instruction);
  bound->from = instruction.device;
  return Bound(std::move(bound));
}

} // namespace

Result<std::shared_ptr<BoundPlan>> bind_plan(std::shared_ptr<const PlanSet> plans,
                                             const BindContext& context) {
  return Binder(std::move(plans), context).bind();
}

} // namespace piper::executor
