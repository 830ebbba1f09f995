#include "actors/executor/state.h"

#include <ATen/native/Resize.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstring>

namespace piper::executor {

using ir::StateKind;

at::ScalarType to_scalar_type(ir::DType dtype) {
  switch (dtype) {
  case ir::DType::F32:
    return at::kFloat;
  case ir::DType::F64:
    return at::kDouble;
  case ir::DType::F16:
    return at::kHalf;
  case ir::DType::BF16:
    return at::kBFloat16;
  case ir::DType::I64:
    return at::kLong;
  case ir::DType::I32:
    return at::kInt;
  case ir::DType::U8:
    return at::kByte;
  case ir::DType::Bool:
    return at::kBool;
  }
  return at::kFloat;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined())
    return "no tensor";
  std::string dtype = c10::toString(tensor.scalar_type());
  for (auto known : {ir::DType::F32, ir::DType::F64, ir::DType::F16, ir::DType::BF16,
                     ir::DType::I64, ir::DType::I32, ir::DType::U8, ir::DType::Bool})
    if (to_scalar_type(known) == tensor.scalar_type())
      dtype = ir::to_string(known);
  return fmt::format("{}[{}]", dtype, fmt::join(tensor.sizes(), ","));
}

const at::Tensor& BucketState::kept(StateKind kind) const {
  switch (kind) {
  case StateKind::Param:
    return param_shard.defined() ? param_shard : param;
  case StateKind::Grad:
    return grad_shard.defined() ? grad_shard : grad;
  case StateKind::Moment1:
    return moment1;
  case StateKind::Moment2:
    return moment2;
  case StateKind::Step:
    break;
  }
  return step;
}

FlatRange BucketState::flat(const at::Tensor& tensor) const {
  return {static_cast<char*>(tensor.mutable_data_ptr()), tensor.numel(),
          tensor.is_same(step) ? ir::DType::F64 : spec->dtype};
}

FlatRange BucketState::whole(StateKind kind) const {
  return flat(kind == StateKind::Param ? param : kind == StateKind::Grad ? grad : kept(kind));
}

FlatRange BucketState::shard(StateKind kind) const {
  FlatRange range = this->range(kind);
  if (is_sharded(kind))
    return range;
  range.data += owned_begin * ir::size_of(range.dtype);
  range.count = owned_count;
  return range;
}

FlatRange BucketState::slice(StateKind kind) const {
  FlatRange range = shard(kind);
  range.count /= replicas;
  range.data += replica * range.bytes();
  return range;
}

namespace {
void resize(const at::Tensor& tensor, size_t bytes) {
  at::native::resize_bytes_cpu(tensor.storage().unsafeGetStorageImpl(), bytes);
}
} // namespace

void BucketState::open(StateKind kind, Holder& holder) {
  HolderScope scope(&holder);
  resize(kind == StateKind::Param ? param : grad,
         static_cast<size_t>(spec->numel * ir::size_of(spec->dtype)));
}

void BucketState::close(StateKind kind) noexcept {
  resize(kind == StateKind::Param ? param : grad, 0);
}

Result<std::shared_ptr<EpochState>> EpochState::make(std::shared_ptr<const ir::PlanSet> plans,
                                                     const ir::ModelSpec& model,
                                                     const DeviceOptions& options,
                                                     MemoryAccount& account, OffloadPool& pool) {
  auto state = std::make_shared<EpochState>();
  state->model_ = &model;
  state->places_.resize(model.params.size());
  state->buckets_.resize(plans->buckets.size());
  auto kinds = options.optimizer.state();
  auto keeps = [&](StateKind kind) {
    return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  };
  auto zeros = [&](const char* holder, int64_t count, ir::DType dtype) {
    HolderScope scope(&account.holder(holder));
    return at::zeros({count}, to_scalar_type(dtype));
  };
  auto kept = [&](const char* holder, int64_t count, ir::DType dtype, bool offload) {
    return offload ? pool.empty(count, to_scalar_type(dtype)).zero_() : zeros(holder, count, dtype);
  };
  const auto place = [&](const ir::Bucket& spec, int rank) {
    const ir::Group& group = plans->groups[spec.group.value];
    const ir::ElementRange owned = ir::owned_range(spec, group, rank);
    BucketState bucket;
    bucket.spec = &spec;
    bucket.team = plans->sub_group(spec, rank);
    bucket.replica = group.copy(rank) / spec.shards;
    bucket.replicas = group.copies() / spec.shards;
    bucket.part = group.part(rank);
    bucket.parts = group.parts();
    bucket.counts = group.counts(rank);
    bucket.owned_begin = owned.begin;
    bucket.owned_count = owned.count();
    return bucket;
  };
  const auto add_optimizer = [&](BucketState& bucket, const char* holder) {
    const auto [count, dtype] = std::pair(bucket.owned_count, bucket.spec->dtype);
    if (keeps(StateKind::Moment1))
      bucket.moment1 = kept(holder, count, dtype, bucket.spec->offload_optimizer);
    if (keeps(StateKind::Moment2))
      bucket.moment2 = kept(holder, count, dtype, bucket.spec->offload_optimizer);
    if (keeps(StateKind::Step))
      bucket.step = zeros(holder, 1, ir::DType::F64);
  };
  for (size_t b = 0; b < plans->buckets.size(); ++b) {
    const ir::Bucket& spec = plans->buckets[b];
    int rank = plans->rank_in(spec.group, options.index);
    if (rank < 0)
      continue;
    if (spec.dtype != ir::DType::F32 && spec.dtype != ir::DType::F64)
      return user_error(fmt::format("parameters of {} can't be trained", ir::to_string(spec.dtype)),
                        "bucket " + spec.name, "use f32 or f64 parameters");
    const ir::Group& group = plans->groups[spec.group.value];
    BucketState& bucket = state->buckets_[b] = place(spec, rank);
    bucket.param = zeros("parameters", spec.numel, spec.dtype);
    bucket.grad = zeros("gradients", spec.numel, spec.dtype);
    // Views can only be made of memory that is there.
    for (size_t i = 0; i < spec.params.size(); ++i) {
      const ir::ModelParam& param = model.param(spec.params[i]);
      const ir::TensorType type = ir::type_on(group, param);
      const int cut = std::max(0, param.cut);
      std::vector<int64_t> stored = type.shape(0);
      if (!stored.empty())
        std::rotate(stored.begin(), stored.begin() + cut, stored.begin() + cut + 1);
      const auto view = [&](const at::Tensor& flat) {
        const at::Tensor run = flat.narrow(0, spec.offsets[i], type.numel(0)).view(stored);
        return cut > 0 ? run.movedim(0, cut) : run;
      };
      state->places_[spec.params[i].value] = {ir::BucketId(b), spec.offsets[i], view(bucket.param),
                                              view(bucket.grad)};
    }
    if (spec.shard_params) {
      bucket.close(StateKind::Param);
      bucket.param_shard = kept("parameters", bucket.owned_count, spec.dtype, spec.offload_params);
    }
    if (spec.shard_grads) {
      bucket.close(StateKind::Grad);
      bucket.grad_shard = zeros("gradients", bucket.owned_count, spec.dtype);
    }
    add_optimizer(bucket, "optimizer");
  }
  for (size_t b = 0; b < plans->buckets.size(); ++b)
    for (uint32_t m = 0; m < plans->buckets[b].mirrors.size(); ++m) {
      const ir::Bucket& spec = plans->buckets[b];
      const int rank = plans->rank_in(spec.mirrors[m], options.index);
      if (rank < 0)
        continue;
      BucketState& mirror = state->mirrors_[{ir::BucketId(b), m + 1}] = place(spec, rank);
      mirror.mirror = true;
      mirror.param_shard = kept("mirrors", mirror.owned_count, spec.dtype, spec.offload_params);
      mirror.grad_shard = zeros("mirrors", mirror.owned_count, spec.dtype);
      add_optimizer(mirror, "mirrors");
    }
  state->plans_ = std::move(plans);
  return state;
}

const BucketState* EpochState::find(ir::BucketId bucket, uint32_t mirror) const {
  if (mirror > 0) {
    const auto found = mirrors_.find({bucket, mirror});
    return found == mirrors_.end() ? nullptr : &found->second;
  }
  const bool here = bucket.value < buckets_.size() && buckets_[bucket.value].spec;
  return here ? &buckets_[bucket.value] : nullptr;
}

Result<FlatRange> EpochState::range(const ir::StateRange& range) const {
  const BucketState* bucket = find(range.bucket, range.mirror);
  const at::Tensor* array = bucket ? &bucket->kept(range.kind) : nullptr;
  const bool owned_only = bucket && bucket->is_sharded(range.kind);
  int64_t begin = range.begin - (owned_only ? bucket->owned_begin : 0);
  if (!array || !array->defined() || begin < 0 || begin + range.count > array->numel())
    return internal_error(
        fmt::format("{} [{}, {}) of {}bucket {} in epoch {} is not on this device",
                    ir::to_string(range.kind), range.begin, range.begin + range.count,
                    range.mirror ? fmt::format("mirror {} of ", range.mirror) : "",
                    range.bucket.value, range.epoch));
  FlatRange result = bucket->range(range.kind);
  result.data += begin * ir::size_of(result.dtype);
  result.count = range.count;
  return result;
}

namespace {
/// What the device has of a parameter that may be cut along dimension `cut`.
at::Tensor part_of(const BucketState& bucket, const at::Tensor& whole, int cut) {
  return bucket.parts > 1 ? whole.chunk(bucket.parts, cut)[bucket.part] : whole;
}

/// Writes what is owned of a parameter's part, which begins at `offset` of the bucket.
void store_owned(const BucketState& bucket, int64_t offset, const at::Tensor& value, int cut) {
  const int64_t begin = std::max(offset, bucket.owned_begin);
  const int64_t end = std::min(offset + value.numel(), bucket.owned_begin + bucket.owned_count);
  if (begin < end)
    bucket.param_shard.narrow(0, begin - bucket.owned_begin, end - begin)
        .copy_((cut > 0 ? value.movedim(cut, 0) : value)
                   .reshape(-1)
                   .narrow(0, begin - offset, end - begin));
}
} // namespace

void EpochState::store(ir::ParamId id, const at::Tensor& whole) const {
  const Place& place = places_[id.value];
  const BucketState& bucket = buckets_[place.bucket.value];
  const int cut = std::max(0, model_->param(id).cut);
  const at::Tensor value = part_of(bucket, whole, cut);
  if (bucket.is_sharded(StateKind::Param))
    store_owned(bucket, place.offset, value, cut);
  else
    place.param.copy_(value);
}

bool EpochState::is_mirrored(ir::ParamId id) const {
  return std::any_of(mirrors_.begin(), mirrors_.end(), [&](const auto& mirror) {
    const auto& params = mirror.second.spec->params;
    return std::find(params.begin(), params.end(), id) != params.end();
  });
}

void EpochState::store_mirrored(ir::ParamId id, const at::Tensor& whole) const {
  const int cut = std::max(0, model_->param(id).cut);
  for (const auto& [key, mirror] : mirrors_) {
    const auto& params = mirror.spec->params;
    if (const auto at = std::find(params.begin(), params.end(), id); at != params.end())
      store_owned(mirror, mirror.spec->offsets[static_cast<size_t>(at - params.begin())],
                  part_of(mirror, whole, cut), cut);
  }
}

std::vector<ir::ParamId> EpochState::params() const {
  std::vector<ir::ParamId> held;
  for (size_t p = 0; p < places_.size(); ++p)
    if (places_[p].bucket)
      held.emplace_back(p);
  return held;
}

void EpochState::attach(PlacedModule& module) const {
  for (PlacedModule::Param& p : module.params) {
    p.tensor.set_data(param(p.id));
    p.tensor.mutable_grad() = grad(p.id);
  }
  module.home = this;
}

void EpochState::clear_grads() {
  for (BucketState& bucket : buckets_)
    if (bucket.spec)
      bucket.kept(StateKind::Grad).zero_();
}

void EpochState::close_windows() noexcept {
  for (BucketState& bucket : buckets_)
    for (StateKind kind : {StateKind::Param, StateKind::Grad})
      if (bucket.spec && bucket.is_sharded(kind))
        bucket.close(kind);
}

void EpochState::clear_optimizer() {
  const auto clear = [](const BucketState& bucket) {
    for (const at::Tensor* array : {&bucket.moment1, &bucket.moment2, &bucket.step})
      if (array->defined())
        array->zero_();
  };
  for (const BucketState& bucket : buckets_)
    clear(bucket);
  for (const auto& [key, mirror] : mirrors_)
    clear(mirror);
}

namespace {

/// The module's parameters with the logical ones they stand for, checked against the model.
Result<std::vector<PlacedModule::Param>> match_params(const Model& model, uint32_t index,
                                                      const BuiltModule& built, Piece piece = {}) {
  const ModuleFactory& factory = model.modules[index];
  std::vector<PlacedModule::Param> params;
  if (!built.module)
    return params;
  auto named = built.module->named_parameters();
  for (const auto& [name, id] : factory.params) {
    const ir::ModelParam& spec = model.spec->param(id);
    const at::Tensor* tensor = named.find(name);
    if (!tensor)
      return user_error(fmt::format("the factory made no parameter '{}'", name),
                        "module " + factory.name, "a factory must make the same module every time");
    ir::TensorType type = spec.type;
    if (spec.cut >= 0)
      type.dims[spec.cut] /= piece.count;
    if (std::string found = describe(*tensor); found != type.to_string())
      return user_error(
          fmt::format("parameter '{}' is {}, but the model has {}", name, found, type.to_string()),
          "module " + factory.name, "a factory must make the same module every time");
    params.push_back({*tensor, id});
  }
  return params;
}

/// Builds the module and copies its initial weights into the buckets.
Result<PlacedModule> build_into(const Model& model, uint32_t index, uint64_t seed,
                                const EpochState& state) {
  PlacedModule placed{.index = index, .built = model.build(index, seed)};
  PIPER_TRY(placed.params, match_params(model, index, placed.built));
  for (PlacedModule::Param& p : placed.params) {
    if (!state.param(p.id).defined())
      return internal_error(fmt::format("no bucket on this device holds parameter '{}'",
                                        model.spec->param(p.id).name),
                            "module " + model.modules[index].name);
    state.store(p.id, p.tensor.detach());
  }
  return placed;
}

} // namespace

Result<std::shared_ptr<PlacedModule>> place_module(const Model& model, uint32_t index, Piece piece,
                                                   uint64_t seed, const EpochState& state) {
  PIPER_TRY(PlacedModule placed, build_into(model, index, seed, state));
  if (piece.count > 1) {
    placed.piece = piece;
    placed.built = model.build_part(index, seed, piece);
    PIPER_TRY(placed.params, match_params(model, index, placed.built, piece));
  }
  state.attach(placed);
  return std::make_shared<PlacedModule>(std::move(placed));
}

void add_buffers(const PlacedModule& module, FixedStorages& to) {
  if (module.built.module)
    for (const at::Tensor& buffer : module.built.module->buffers())
      to.insert(buffer.storage().unsafeGetStorageImpl());
}

Result<void> fill_mirrors(const Model& model, uint64_t seed, const EpochState& state) {
  for (uint32_t m = 0; m < model.modules.size(); ++m) {
    const auto& own = model.modules[m].params;
    if (std::none_of(own.begin(), own.end(),
                     [&](const auto& param) { return state.is_mirrored(param.second); }))
      continue;
    const BuiltModule built = model.build(m, seed);
    PIPER_TRY(const auto params, match_params(model, m, built));
    for (const PlacedModule::Param& param : params)
      state.store_mirrored(param.id, param.tensor.detach());
  }
  return {};
}

Result<void> fill_initial(const Model& model, uint32_t index, uint64_t seed,
                          const EpochState& state) {
  PIPER_TRY(PlacedModule placed, build_into(model, index, seed, state));
  return {};
}

} // namespace piper::executor
