#include "actors/device_runner.h"

#include "compiler/frontend/dtypes.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <exception>

namespace piper::actors {
namespace {

/// Runs `body`; an exception becomes an Internal error.
template <class F> Result<void> guarded(const std::string& where, F&& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    return internal_error(e.what(), where);
  }
}

/// A parameter on its way to the device that gathers them.
transport::Payload payload_of(const at::Tensor& tensor) {
  auto* token = new at::Tensor(tensor.contiguous());
  return {token->data_ptr(), token->nbytes(), token,
          [](void* p) { delete static_cast<at::Tensor*>(p); }};
}

class TensorSink final : public transport::Sink {
public:
  explicit TensorSink(at::Tensor& target) : target_(target) {}
  void* allocate(size_t bytes) override {
    return bytes == target_.nbytes() ? target_.data_ptr() : nullptr;
  }
  void adopt(transport::Payload payload) override {
    std::memcpy(target_.data_ptr(), payload.data(), payload.bytes());
  }

private:
  at::Tensor& target_;
};

} // namespace

DeviceRunner::DeviceRunner(executor::DeviceOptions options, std::shared_ptr<const Model> model,
                           transport::Endpoint& endpoint, RunnerCallbacks callbacks)
    : options_(std::move(options)), model_(std::move(model)), endpoint_(endpoint),
      callbacks_(std::move(callbacks)), device_(options_, model_, endpoint) {}

DeviceRunner::~DeviceRunner() {
  device_.abort({ErrorKind::Cancelled, "the session has ended", {}, {}});
  run_thread_.stop();
  prepare_thread_.stop();
}

void DeviceRunner::prepare(PrepareRequest request) {
  prepare_thread_.post([this, request = std::move(request)] { do_prepare(request); });
}

void DeviceRunner::discard(Epoch epoch) {
  prepare_thread_.post([this, epoch] {
    std::lock_guard lock(state_mutex_);
    device_.discard(epoch);
    manifests_.erase(epoch);
    std::vector<Manifest> kept;
    for (const auto& [other, manifests] : manifests_)
      kept.insert(kept.end(), manifests.begin(), manifests.end());
    fragments_.keep_only(kept);
  });
}

void DeviceRunner::enqueue(Op op) {
  run_thread_.post([this, op = std::move(op)] { do_op(op); });
}

void DeviceRunner::abort(Error reason) {
  {
    std::lock_guard lock(refuse_mutex_);
    if (!refuse_)
      refuse_ = reason;
  }
  device_.abort(std::move(reason));
}

void DeviceRunner::do_prepare(const PrepareRequest& request) {
  PrepareReport report{.device = options_.index, .epoch = request.epoch, .error = {}};
  std::lock_guard lock(state_mutex_);
  auto result =
      guarded("device " + std::to_string(options_.index), [&] { return try_prepare(request); });
  if (!result.ok()) {
    report.ok = false;
    report.error = result.error();
  }
  callbacks_.prepared(std::move(report));
}

Result<void> DeviceRunner::try_prepare(const PrepareRequest& request) {
  for (const PlanFragment& fragment : request.fragments)
    PIPER_CHECK_OK(fragments_.add(fragment));
  manifests_[request.epoch] = request.plans;
  for (const Manifest& manifest : request.plans) {
    PIPER_TRY(std::string text, fragments_.assemble(manifest));
    PIPER_TRY(ir::PlanSet plans, ir::PlanSet::parse(text));
    PIPER_CHECK_OK(device_.prepare(std::make_shared<const ir::PlanSet>(std::move(plans))));
  }
  return {};
}

void DeviceRunner::do_op(const Op& op) {
  OpReport report{.device = options_.index, .seq = op.seq, .epoch = op.epoch};
  std::optional<Error> refused;
  {
    std::lock_guard lock(refuse_mutex_);
    refused = refuse_;
  }
  Result<void> result;
  if (refused && op.kind != OpKind::Recover)
    result = *refused;
  else
    result =
        guarded("device " + std::to_string(options_.index), [&] { return try_op(op, report); });
  if (!result.ok()) {
    report.ok = false;
    report.error = result.error();
    // What was granted after a failed iteration must not run.
    std::lock_guard lock(refuse_mutex_);
    if (!refuse_)
      refuse_ = report.error;
  }
  callbacks_.done(std::move(report));
}

Result<void> DeviceRunner::try_op(const Op& op, OpReport& report) {
  const uint64_t sent_before = endpoint_.bytes_sent();
  auto keep = [&](Result<executor::IterationResult> result) -> Result<void> {
    PIPER_TRY(executor::IterationResult iteration, std::move(result));
    report.losses = std::move(iteration.losses);
    report.grad_norm = iteration.grad_norm;
    report.busy_seconds = iteration.busy_seconds;
    report.idle_seconds = iteration.idle_seconds;
    return {};
  };
  Result<void> result;
  switch (op.kind) {
  case OpKind::Run:
    result = keep(device_.run(op.iteration));
    break;
  case OpKind::Evaluate:
    result = keep(device_.evaluate(op.iteration));
    break;
  case OpKind::Initialize: {
    std::lock_guard lock(state_mutex_);
    result = device_.initialize(op.epoch);
    break;
  }
  case OpKind::Migrate: {
    std::lock_guard lock(state_mutex_);
    result = device_.migrate(op.epoch);
    break;
  }
  case OpKind::Commit: {
    std::lock_guard lock(state_mutex_);
    result = device_.commit(op.epoch);
    std::erase_if(manifests_, [&](const auto& entry) { return entry.first != op.epoch; });
    fragments_.keep_only(manifests_[op.epoch]);
    break;
  }
  case OpKind::Recover: {
    device_.recover();
    std::lock_guard lock(refuse_mutex_);
    refuse_.reset();
    break;
  }
  case OpKind::Hashes: {
    auto hashes = device_.parameter_hashes();
    if (!hashes.ok())
      return std::move(hashes).error();
    for (const auto& [param, hash] : *hashes)
      report.hashes.emplace_back(param.value, hash);
    break;
  }
  case OpKind::Timeline:
    report.timeline = device_.timeline();
    break;
  case OpKind::Gather:
    result = gather(op);
    break;
  }
  report.bytes_sent = endpoint_.bytes_sent() - sent_before;
  report.peak_bytes = device_.peak_bytes();
  report.offloaded_bytes = device_.offloaded_peak();
  return result;
}

Result<void> DeviceRunner::gather(const Op& op) {
  const auto deadline = transport::Clock::now() + options_.deadline;
  std::map<uint32_t, at::Tensor> held;
  PIPER_TRY(auto parameters, device_.parameters());
  for (auto& [param, tensor] : parameters)
    held.emplace(param.value, std::move(tensor));
  std::map<std::string, at::Tensor> all;
  for (const auto& [param, owner] : op.owners) {
    const ir::ModelParam& spec = model_->spec->params[param];
    const transport::Key key{op.epoch, param};
    if (options_.index == 0 && owner == 0) {
      all.emplace(spec.name, std::move(held.at(param)));
    } else if (options_.index == 0) {
      at::Tensor tensor = at::empty(spec.type.dims, to_scalar_type(spec.type.dtype));
      TensorSink sink(tensor);
      PIPER_CHECK_OK(endpoint_.recv(owner, key, tensor.nbytes(), sink, deadline));
      all.emplace(spec.name, std::move(tensor));
    } else if (owner == options_.index) {
      PIPER_CHECK_OK(endpoint_.send(0, key, payload_of(held.at(param))));
    }
  }
  if (options_.index == 0 && callbacks_.gathered)
    callbacks_.gathered(std::move(all));
  return endpoint_.flush(deadline);
}

} // namespace piper::actors
