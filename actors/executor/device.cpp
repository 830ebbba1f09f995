#include "actors/executor/device.h"

#include "actors/executor/bound_plan.h"
#include "actors/executor/cpu_stream.h"
#include "actors/executor/errors.h"
#include "actors/executor/interpreter.h"
#include "actors/executor/timeline.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <map>
#include <mutex>

namespace piper::executor {

namespace {
constexpr uint32_t kLastEdge = (1U << 20) - 1; ///< that every transport's keys have room for
} // namespace

struct Device::Impl {
  /// What was prepared for an epoch.
  struct Prepared {
    std::shared_ptr<EpochState> state; ///< null if no bucket is here
    std::shared_ptr<BoundPlan> train, eval, migrate;

    std::shared_ptr<BoundPlan>& plan(ir::PlanKind kind) {
      return kind == ir::PlanKind::Train ? train : kind == ir::PlanKind::Eval ? eval : migrate;
    }
    std::vector<std::shared_ptr<PlacedModule>> modules() const {
      std::vector<std::shared_ptr<PlacedModule>> all;
      for (const auto& plan : {train, eval})
        if (plan)
          all.insert(all.end(), plan->modules.begin(), plan->modules.end());
      return all;
    }
  };

  Impl(DeviceOptions options_, std::shared_ptr<const Model> model_, transport::Endpoint& endpoint_)
      : options(std::move(options_)), model(std::move(model_)), endpoint(endpoint_),
        fingerprint(model->spec->fingerprint()), account(MemoryAccount::make(options.memory_cap)),
        pool(OffloadPool::make(options.offload_directory)),
        backend({options.deadline, options.spin, options.threads}), interpreter(endpoint, options) {
  }

  Result<void> prepare(std::shared_ptr<const ir::PlanSet> plans);
  Result<void> initialize(ir::Epoch epoch);
  Result<std::shared_ptr<EpochState>> state_for(const std::shared_ptr<const ir::PlanSet>& plans,
                                                const Prepared& prepared);
  Result<std::shared_ptr<PlacedModule>> module(uint32_t index, Piece piece,
                                               const EpochState* state);
  Result<at::Tensor> gather_parts(const BucketState& bucket, size_t index);
  std::shared_ptr<Stream> stream(const std::string& name, bool compute);
  Result<IterationResult> run(ir::PlanKind kind, int64_t iteration);
  /// Calls `read(id, tensor)` for each parameter held, bucket by bucket.
  template <class Read> Result<void> read_parameters(Read read);

  Prepared find(ir::Epoch epoch) {
    std::lock_guard lock(mutex);
    auto found = epochs.find(epoch);
    return found == epochs.end() ? Prepared{} : found->second;
  }
  std::shared_ptr<EpochState> committed_state() {
    return committed ? find(*committed).state : nullptr;
  }
  std::string where(const std::string& what) const {
    return fmt::format("device {}, {}", options.index, what);
  }
  /// The result of `work`, or the error that an exception of it stands for.
  template <class Work> auto guarded(const std::string& what, Work work) -> decltype(work()) {
    HolderScope scope(&account->holder(what));
    at::AutoGradMode no_grad(false);
    try {
      auto done = work();
      if (done.ok())
        return done;
      Error error = std::move(done).error();
      error.where = where(error.where.empty() ? what : error.where);
      return error;
    } catch (...) {
      return error_in_flight(where(what));
    }
  }

  const DeviceOptions options;
  const std::shared_ptr<const Model> model;
  transport::Endpoint& endpoint;
  const ir::Fingerprint fingerprint; ///< of the model
  const MemoryAccount::Ptr account;
  const std::shared_ptr<OffloadPool> pool;
  CpuBackend backend;
  Interpreter interpreter;

  std::mutex preparing; ///< one `prepare` or `discard` at a time; taken before `mutex`
  /// Of `preparing`; plans own them.
  std::map<std::pair<uint32_t, Piece>, std::weak_ptr<PlacedModule>> modules;
  std::map<std::pair<std::string, bool>, std::weak_ptr<Stream>> streams; ///< likewise
  std::mutex mutex;                                                      ///< of what follows
  std::map<ir::Epoch, Prepared> epochs;
  std::optional<ir::Epoch> committed;
  std::optional<int64_t> updated; ///< by the thread that runs iterations
};

Result<std::shared_ptr<EpochState>>
Device::Impl::state_for(const std::shared_ptr<const ir::PlanSet>& plans, const Prepared& prepared) {
  if (!prepared.state)
    return EpochState::make(plans, *model->spec, options, *account, *pool);
  if (!plans->buckets.empty() && plans->buckets != prepared.state->plans().buckets)
    return internal_error(
        fmt::format("two plans of epoch {} have different buckets", plans->epoch));
  return prepared.state;
}

/// A module that is built already, in whatever epoch, or a new one in the buckets of `state`.
Result<std::shared_ptr<PlacedModule>> Device::Impl::module(uint32_t index, Piece piece,
                                                           const EpochState* state) {
  if (!model->modules[index].make_part)
    piece = {}; // a plain function, say
  auto& entry = modules[{index, piece}];
  if (auto known = entry.lock())
    return known;
  PIPER_TRY(auto placed, place_module(*model, index, piece, options.seed, *state));
  entry = placed;
  return placed;
}

std::shared_ptr<Stream> Device::Impl::stream(const std::string& name, bool compute) {
  auto& known = streams[{name, compute}];
  if (auto stream = known.lock())
    return stream;
  std::shared_ptr<Stream> made = backend.make_stream(name, compute);
  known = made;
  return made;
}

Result<void> Device::Impl::prepare(std::shared_ptr<const ir::PlanSet> plans) {
  if (!plans->role_of(options.index))
    return {};
  if (plans->model != fingerprint)
    return user_error("the plan was made for another model", {},
                      "all processes must build the same model");
  const ir::Epoch epoch = plans->epoch;
  const ir::PlanKind kind = plans->kind;
  Prepared prepared = find(epoch);
  PIPER_TRY(prepared.state, state_for(plans, prepared));
  BindContext context{
      options,
      *model,
      interpreter.state(),
      *account,
      *pool,
      backend,
      [&](const std::string& name, bool compute) { return stream(name, compute); },
      [&](ir::Epoch wanted) { return wanted == epoch ? prepared.state : find(wanted).state; },
      [&](uint32_t index, Piece piece) { return module(index, piece, prepared.state.get()); }};
  PIPER_TRY(prepared.plan(kind), bind_plan(std::move(plans), context));
  std::lock_guard lock(mutex);
  epochs[epoch] = std::move(prepared);
  return {};
}

Result<void> Device::Impl::initialize(ir::Epoch epoch) {
  Prepared prepared = find(epoch);
  if (!prepared.state)
    return {};
  EpochState& state = *prepared.state;
  for (const auto& placed : prepared.modules())
    if (!state.pristine || placed->home != &state)
      PIPER_CHECK_OK(fill_initial(*model, placed->index, options.seed, state));
  PIPER_CHECK_OK(fill_mirrors(*model, options.seed, state));
  if (!state.pristine)
    state.clear_optimizer();
  state.torn = false;
  updated.reset();
  return {};
}

Result<IterationResult> Device::Impl::run(ir::PlanKind kind, int64_t iteration) {
  if (!committed)
    return internal_error("no epoch has been committed", where(ir::to_string(kind)));
  Prepared prepared = find(*committed);
  auto plan = prepared.plan(kind);
  if (!plan) {
    if (prepared.train) // else the device is idle in this epoch
      return internal_error(
          fmt::format("no {} plan was prepared for epoch {}", ir::to_string(kind), *committed),
          where(ir::to_string(kind)));
    IterationResult idle;
    idle.iteration = iteration;
    return idle;
  }
  if (kind != ir::PlanKind::Train)
    return interpreter.run(plan, iteration);
  prepared.state->pristine = false;
  auto result = interpreter.run(plan, iteration);
  if (interpreter.state().committed() && interpreter.state().iteration == iteration)
    updated = iteration;
  return result;
}

/// The parameters of a bucket that are cut, a line a part.
Result<at::Tensor> Device::Impl::gather_parts(const BucketState& bucket, size_t index) {
  const auto state = committed_state();
  const ir::Group& group = state->plans().groups[bucket.spec->group.value];
  const std::vector<ir::DeviceIndex> block =
      group.block_of(state->plans().rank_in(bucket.spec->group, options.index));
  at::Tensor all = at::empty({bucket.parts, bucket.spec->numel}, bucket.param.options());
  all[bucket.part].copy_(bucket.param);
  // Below the keys with which sharded buckets are gathered.
  const size_t edge = kLastEdge - state->buckets().size() - index;
  PIPER_CHECK_OK(endpoint.all_gather(block, {state->plans().epoch, static_cast<uint32_t>(edge)},
                                     all.mutable_data_ptr(), static_cast<size_t>(all.numel()),
                                     bucket.spec->dtype, interpreter.state().wait_until()));
  return all;
}

template <class Read> Result<void> Device::Impl::read_parameters(Read read) {
  return guarded("read parameters", [&]() -> Result<void> {
    const auto state = committed_state();
    if (!state)
      return {};
    for (size_t b = 0; b < state->buckets().size(); ++b) {
      BucketState& bucket = state->buckets()[b];
      if (!bucket.spec)
        continue;
      if (bucket.is_sharded(ir::StateKind::Param)) {
        GatherInstruction gather;
        gather.bucket = &bucket;
        gather.memory = &account->holder("gathered parameters");
        const std::vector<ir::DeviceIndex> copies = state->plans().members(bucket.team);
        gather.group = copies;
        // Above the edges of any plan.
        gather.key = {state->plans().epoch, static_cast<uint32_t>(kLastEdge - b)};
        gather.state = &interpreter.state();
        if (auto done = gather.transfer(); !done.ok()) {
          bucket.close(ir::StateKind::Param);
          return done;
        }
      }
      auto done = [&]() -> Result<void> {
        if (bucket.parts == 1) {
          for (ir::ParamId id : bucket.spec->params)
            read(id, state->param(id).contiguous());
          return {};
        }
        PIPER_TRY(const at::Tensor all, gather_parts(bucket, b));
        for (ir::ParamId id : bucket.spec->params) {
          const at::Tensor own = state->param(id);
          const int cut = model->spec->param(id).cut;
          std::vector<int64_t> stored = own.movedim(cut, 0).sizes().vec();
          stored[0] *= bucket.parts;
          read(id, all.narrow(1, own.storage_offset(), own.numel())
                       .reshape(stored)
                       .movedim(0, cut)
                       .contiguous());
        }
        return {};
      }();
      if (bucket.is_sharded(ir::StateKind::Param))
        bucket.close(ir::StateKind::Param);
      if (!done.ok())
        return done;
    }
    return {};
  });
}

Device::Device(DeviceOptions options, std::shared_ptr<const Model> model,
               transport::Endpoint& endpoint)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(model), endpoint)) {}
Device::~Device() = default;

Result<void> Device::prepare(std::shared_ptr<const ir::PlanSet> plans) {
  std::lock_guard lock(impl_->preparing);
  return impl_->guarded("prepare", [&] { return impl_->prepare(std::move(plans)); });
}

Result<void> Device::initialize(ir::Epoch epoch) {
  return impl_->guarded("initialize", [&] { return impl_->initialize(epoch); });
}

Result<void> Device::migrate(ir::Epoch epoch) {
  auto prepared = impl_->find(epoch);
  if (!prepared.migrate)
    return {};
  if (prepared.state)
    prepared.state->pristine = false;
  PIPER_TRY([[maybe_unused]] auto moved, impl_->interpreter.run(prepared.migrate, -1));
  return impl_->endpoint.flush(Clock::now() + impl_->options.deadline);
}

Result<void> Device::commit(ir::Epoch epoch) {
  auto prepared = impl_->find(epoch);
  if (prepared.state)
    for (const auto& placed : prepared.modules())
      prepared.state->attach(*placed);
  std::map<ir::Epoch, Impl::Prepared> dropped; // freed without the lock
  std::lock_guard lock(impl_->mutex);
  impl_->committed = epoch;
  impl_->epochs[epoch].migrate.reset();
  auto first = impl_->epochs.begin(), kept = impl_->epochs.find(epoch);
  for (auto e = first; e != kept;)
    dropped.insert(impl_->epochs.extract(e++));
  return {};
}

void Device::discard(ir::Epoch epoch) {
  std::lock_guard preparing(impl_->preparing);
  Impl::Prepared dropped; // freed without the lock
  std::lock_guard lock(impl_->mutex);
  auto found = impl_->epochs.find(epoch);
  if (found == impl_->epochs.end() || impl_->committed == epoch)
    return;
  dropped = std::move(found->second);
  impl_->epochs.erase(found);
}

Result<IterationResult> Device::run(int64_t iteration) {
  return impl_->run(ir::PlanKind::Train, iteration);
}
Result<IterationResult> Device::evaluate(int64_t iteration) {
  return impl_->run(ir::PlanKind::Eval, iteration);
}

void Device::abort(Error reason) {
  impl_->interpreter.abort(std::move(reason));
}
void Device::recover() {
  impl_->interpreter.recover(impl_->committed.value_or(0));
}

Result<at::Tensor> Device::read(const ir::StateRange& range) {
  return impl_->guarded("read state", [&]() -> Result<at::Tensor> {
    const auto state = impl_->committed_state();
    if (!state || state->plans().epoch != range.epoch)
      return internal_error(fmt::format("epoch {} is not committed", range.epoch));
    PIPER_TRY(const FlatRange source, state->range(range));
    HolderScope callers(nullptr);
    at::Tensor copy = at::empty({source.count}, to_scalar_type(source.dtype));
    std::memcpy(copy.mutable_data_ptr(), source.data, static_cast<size_t>(source.bytes()));
    return copy;
  });
}

std::optional<int64_t> Device::updated() const {
  const auto state = impl_->committed_state();
  return state && state->torn ? std::nullopt : impl_->updated;
}

ir::Timeline Device::timeline() const {
  if (!impl_->committed)
    return {};
  const auto plan = impl_->find(*impl_->committed).train;
  return plan ? timeline_of(*plan, impl_->options.index, *impl_->model->spec) : ir::Timeline{};
}

Result<std::vector<std::pair<ir::ParamId, uint64_t>>> Device::parameter_hashes() {
  std::vector<std::pair<ir::ParamId, uint64_t>> hashes;
  PIPER_CHECK_OK(impl_->read_parameters([&](ir::ParamId id, const at::Tensor& tensor) {
    hashes.emplace_back(id, XXH3_64bits(tensor.const_data_ptr(), tensor.nbytes()));
  }));
  return hashes;
}

Result<std::vector<std::pair<ir::ParamId, at::Tensor>>> Device::parameters() {
  std::vector<std::pair<ir::ParamId, at::Tensor>> copies;
  PIPER_CHECK_OK(impl_->read_parameters([&](ir::ParamId id, const at::Tensor& tensor) {
    HolderScope callers(nullptr);
    copies.emplace_back(id, tensor.clone());
  }));
  return copies;
}

int64_t Device::live_bytes() const {
  return impl_->account->live();
}
int64_t Device::peak_bytes() const {
  return impl_->account->peak();
}
int64_t Device::offloaded_peak() const {
  return impl_->pool->peak();
}
std::vector<MemoryHolder> Device::holders() const {
  return impl_->account->holders();
}

} // namespace piper::executor
