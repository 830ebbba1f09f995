#include "tests/parity/cluster.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <thread>

namespace piper::test {

using namespace ir;

Cluster::Cluster(std::shared_ptr<const Model> model, uint32_t devices,
                 executor::OptimizerSpec optimizer, uint64_t seed)
    : model_(std::move(model)), optimizer_(optimizer) {
  std::vector<DeviceIndex> all(devices);
  std::iota(all.begin(), all.end(), 0);
  // More threads than cores: spinning would take time from those who work.
  fabric_ = std::make_unique<transport::LoopbackFabric>(
      all, transport::LoopbackOptions{.spin = std::chrono::nanoseconds(0)});
  for (DeviceIndex d : all)
    devices_.push_back(std::make_unique<executor::Device>(
        executor::DeviceOptions{.index = d,
                                .seed = seed,
                                .optimizer = optimizer,
                                .deadline = std::chrono::seconds(20),
                                .spin = false},
        model_, fabric_->endpoint(d)));
}

template <class Work> Result<void> Cluster::on_all(Work work) {
  std::vector<Result<void>> results(devices_.size());
  std::vector<std::thread> threads;
  for (size_t d = 0; d < devices_.size(); ++d)
    threads.emplace_back([&, d] {
      results[d] = work(*devices_[d], d);
      if (!results[d].ok())
        for (auto& other : devices_)
          other->abort({ErrorKind::PeerAborted, results[d].error().to_string()});
    });
  for (std::thread& thread : threads)
    thread.join();
  // The first cause, not those it took along.
  for (const auto& result : results)
    if (!result.ok() && result.error().kind != ErrorKind::PeerAborted)
      return result.error();
  for (const auto& result : results)
    if (!result.ok())
      return result.error();
  return {};
}

Result<PlanSet> Cluster::compile(const Strategy& strategy) const {
  compiler::CompileOptions options;
  options.epoch = plans_ ? plans_->epoch + 1 : 0;
  options.devices = static_cast<uint32_t>(devices_.size());
  options.verify_passes = true;
  PIPER_TRY(compiler::Compiled compiled, compiler::compile(model_->spec, strategy, options));
  return std::move(compiled.plans);
}

Result<void> Cluster::start(const Strategy& strategy) {
  PIPER_TRY(PlanSet plans, compile(strategy));
  return start(std::move(plans));
}

Result<void> Cluster::start(PlanSet plans) {
  plans_ = std::make_shared<const PlanSet>(std::move(plans));
  return on_all([&](executor::Device& device, size_t) -> Result<void> {
    PIPER_CHECK_OK(device.prepare(plans_));
    PIPER_CHECK_OK(device.initialize(plans_->epoch));
    return device.commit(plans_->epoch);
  });
}

Result<void> Cluster::change(const Strategy& strategy) {
  PIPER_TRY(PlanSet next, compile(strategy));
  auto to = std::make_shared<const PlanSet>(std::move(next));
  std::vector<StateKind> kinds = optimizer_.state();
  kinds.insert(kinds.begin(), StateKind::Param);
  PIPER_TRY(PlanSet moves, compiler::compile_migration(*plans_, *to, *model_->spec, kinds));
  auto migration = std::make_shared<const PlanSet>(std::move(moves));
  PIPER_CHECK_OK(on_all([&](executor::Device& device, size_t) -> Result<void> {
    PIPER_CHECK_OK(device.prepare(to));
    PIPER_CHECK_OK(device.prepare(migration));
    PIPER_CHECK_OK(device.migrate(to->epoch));
    return {};
  }));
  plans_ = to;
  return on_all([&](executor::Device& device, size_t) { return device.commit(plans_->epoch); });
}

Result<double> Cluster::step() {
  results_.resize(devices_.size());
  PIPER_CHECK_OK(on_all([&](executor::Device& device, size_t d) -> Result<void> {
    PIPER_TRY(results_[d], device.run(iteration_));
    return {};
  }));
  ++iteration_;
  double total = 0;
  int64_t m = 0;
  for (const auto& reporting : plans_->loss_order()) {
    double sum = 0;
    for (DeviceIndex device : reporting)
      sum += results_.at(device).losses.at(m);
    total += sum / static_cast<double>(reporting.size());
    ++m;
  }
  return total / static_cast<double>(plans_->microbatches);
}

Result<std::vector<double>> Cluster::steps(int count) {
  std::vector<double> losses;
  for (int i = 0; i < count; ++i) {
    PIPER_TRY(double loss, step());
    losses.push_back(loss);
  }
  return losses;
}

Result<std::map<std::string, at::Tensor>> Cluster::parameters() {
  std::vector<std::vector<std::pair<ParamId, at::Tensor>>> held(devices_.size());
  PIPER_CHECK_OK(on_all([&](executor::Device& device, size_t d) -> Result<void> {
    PIPER_TRY(held[d], device.parameters());
    return {};
  }));
  std::map<std::string, at::Tensor> all;
  for (const auto& of_device : held)
    for (const auto& [id, tensor] : of_device) {
      const std::string& name = model_->spec->param(id).name;
      auto [entry, first] = all.try_emplace(name, tensor);
      if (!first && !at::equal(entry->second, tensor))
        return internal_error("holders of " + name + " disagree");
    }
  if (all.size() != model_->spec->params.size())
    return internal_error("some parameters have no holder");
  return all;
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size())
    return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) // also where one is no number
      largest =
          std::max(largest, std::isfinite(a[i] - b[i])
                                ? std::abs(a[i] - b[i]) / std::max(std::abs(a[i]), std::abs(b[i]))
                                : INFINITY);
  return largest;
}

double difference(const std::map<std::string, at::Tensor>& a,
                  const std::map<std::string, at::Tensor>& b) {
  if (a.size() != b.size())
    return INFINITY;
  double largest = 0;
  for (const auto& [name, tensor] : a) {
    const at::Tensor& other = b.at(name);
    // Relative to the parameter's own size: an element near zero has no digits to compare.
    const double scale = tensor.abs().max().item<double>();
    const double delta = (tensor - other).abs().max().item<double>();
    if (!std::isfinite(delta))
      return INFINITY;
    if (delta != 0)
      largest = std::max(largest, delta / scale);
  }
  return largest;
}

} // namespace piper::test
