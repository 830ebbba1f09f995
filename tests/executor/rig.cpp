#include "tests/executor/rig.h"

#include "actors/executor/optimizer.h"
#include "compiler/frontend/model_builder.h"

#include <torch/torch.h>

#include <thread>

namespace piper::test {
namespace {

struct TanhLinearImpl : torch::nn::Module {
  TanhLinearImpl(int64_t in, int64_t out) : linear(in, out) { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(linear->forward(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(TanhLinear);

struct JoinImpl : torch::nn::Module {
  explicit JoinImpl(int64_t width) : linear(width, width) { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& a, const at::Tensor& b) {
    return at::gelu(linear->forward(a)) * b;
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Join);

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(int64_t width) : linear(width, 1) { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip, const at::Tensor& target) {
    return (linear->forward(x * skip) - target).square().mean();
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Head);

struct TableImpl : torch::nn::Module {
  TableImpl(int64_t rows, int64_t width)
      : weight(register_parameter("weight", torch::randn({rows, width}))) {}
  at::Tensor forward(const at::Tensor& tokens) { return at::embedding(weight, tokens); }
  at::Tensor weight;
};
TORCH_MODULE(Table);

struct OutputImpl : torch::nn::Module {
  OutputImpl(int64_t rows, int64_t width)
      : weight(register_parameter("weight", torch::randn({rows, width}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Output);

/// Row r of iteration i is a function of (i, r, input) alone.
at::Tensor rows_of(const BatchRequest& request, int64_t columns) {
  auto index = at::arange(request.first_row * columns, (request.first_row + request.rows) * columns,
                          torch::kFloat64);
  double shift = static_cast<double>(request.iteration) + (request.held_out ? 1000.5 : 0) +
                 static_cast<double>(request.input.size());
  return at::sin(index * 0.37 + shift).view({request.rows, columns});
}

std::shared_ptr<const Model> finish(Result<Model> built, DataSource data) {
  Model model = std::move(built).value_or_throw();
  model.data = std::move(data);
  return std::make_shared<const Model>(std::move(model));
}

} // namespace

std::shared_ptr<const Model> skip_model(int64_t batch) {
  ModelBuilder b("skip");
  b.dtype(torch::kFloat64);
  Value x = b.input("x", {batch, 6}, torch::kFloat64);
  Value target = b.input("target", {batch, 1}, torch::kFloat64);
  auto layer = [&](int64_t i) { return b.annotate("layer", i); };
  Value a, c, out, loss;
  {
    auto scope = layer(0);
    a = b.call(
        "a", [] { return TanhLinear(6, 8); }, x);
  }
  {
    auto scope = layer(1);
    out = b.call(
        "b", [] { return TanhLinear(8, 8); }, a);
  }
  {
    auto scope = layer(2);
    c = b.call(
        "c", [] { return Join(8); }, a, out);
  }
  {
    auto scope = layer(3);
    loss = b.call(
        "head", [] { return Head(8); }, c, a, target);
  }
  return finish(b.loss(loss), [](const BatchRequest& request) {
    return rows_of(request, request.input == "x" ? 6 : 1);
  });
}

std::shared_ptr<const Model> shared_model(int64_t batch) {
  constexpr int64_t kTokens = 7, kWidth = 5;
  ModelBuilder b("shared");
  b.dtype(torch::kFloat64);
  Value tokens = b.input("tokens", {batch, 3}, torch::kLong);
  Value targets = b.input("targets", {batch, 3}, torch::kLong);
  auto inner = b.module("inner", [=] { return TanhLinear(kWidth, kWidth); });
  Value x;
  {
    auto scope = b.annotate("layer", 0);
    x = b.call(
        "table", [=] { return Table(kTokens, kWidth); }, tokens);
  }
  {
    auto scope = b.annotate("layer", 1);
    x = b.call("first", inner, x);
    x = b.call("second", inner, x);
  }
  auto scope = b.annotate("layer", 2);
  x = b.call(
      "output", [=] { return Output(kTokens, kWidth); }, x);
  b.tie("output.weight", "table.weight");
  return finish(b.loss(x, targets), [](const BatchRequest& request) {
    auto index = at::arange(request.first_row * 3, (request.first_row + request.rows) * 3);
    return ((index * 5 + request.iteration * 3 + (request.input == "tokens" ? 0 : 2)) % 7)
        .view({request.rows, 3});
  });
}

std::shared_ptr<const Model> with_data(const Model& model, DataSource data) {
  Model copy = model;
  copy.data = std::move(data);
  return std::make_shared<const Model>(std::move(copy));
}

Reference::Reference(const Model& model, executor::DeviceOptions options)
    : model_(model), options_(options), params_(model.spec->params.size()) {
  for (uint32_t m = 0; m < model.modules.size(); ++m) {
    modules_.push_back(model.build(m, options.seed));
    for (const auto& [name, id] : model.modules[m].params) {
      at::Tensor own = modules_[m].module->named_parameters()[name];
      if (params_[id.value].defined())
        own.set_data(params_[id.value].detach()); // tied
      else
        params_[id.value] = own;
    }
  }
  for (const at::Tensor& p : params_) {
    moment1_.push_back(at::zeros_like(p));
    moment2_.push_back(at::zeros_like(p));
    const_cast<at::Tensor&>(p).mutable_grad() = at::zeros_like(p);
  }
  for (uint32_t m = 0; m < model.modules.size(); ++m)
    for (const auto& [name, id] : model.modules[m].params)
      modules_[m].module->named_parameters()[name].mutable_grad() = params_[id.value].grad();
}

at::Tensor Reference::forward(int64_t iteration, int64_t first_row, int64_t rows, bool held_out) {
  const ir::ModelSpec& spec = *model_.spec;
  std::vector<at::Tensor> values(spec.values.size());
  for (ir::ValueId v : spec.inputs)
    values[v.value] = model_.data({spec.value(v).name, iteration, first_row, rows, held_out});
  for (size_t c = 0; c < spec.calls.size(); ++c) {
    Tensors inputs;
    for (ir::ValueId v : spec.calls[c].inputs)
      inputs.push_back(values[v.value]);
    Tensors outputs = modules_[model_.call_module[c]].forward(inputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      values[spec.calls[c].outputs[i].value] = outputs[i];
  }
  return values[spec.loss.value];
}

std::vector<double> Reference::step(int64_t iteration, int64_t microbatches) {
  std::vector<double> losses;
  const int64_t rows = model_.spec->batch / microbatches;
  for (int64_t m = 0; m < microbatches; ++m) {
    at::Tensor loss = forward(iteration, m * rows, rows, false);
    losses.push_back(loss.item<double>());
    torch::NoGradGuard no_grad;
    loss.backward(at::scalar_tensor(1.0 / static_cast<double>(microbatches), loss.options()));
  }
  const auto& spec = options_.optimizer;
  double squares = 0;
  for (const at::Tensor& p : params_)
    squares += p.grad().square().sum().item<double>();
  grad_norm_ = std::sqrt(squares);
  double factor = spec.clip_norm > 0 ? std::min(1.0, spec.clip_norm / (grad_norm_ + 1e-6)) : 1;
  executor::UpdateStep now{spec.lr_at(iteration), ++steps_, factor};
  for (size_t p = 0; p < params_.size(); ++p) {
    auto* param = params_[p].mutable_data_ptr<double>();
    auto* grad = params_[p].grad().mutable_data_ptr<double>();
    auto* moment1 = moment1_[p].mutable_data_ptr<double>();
    auto* moment2 = moment2_[p].mutable_data_ptr<double>();
    if (spec.kind == executor::OptimizerSpec::Kind::AdamW)
      executor::adamw(spec, now, param, grad, moment1, moment2, params_[p].numel());
    else
      executor::sgd(spec, now, param, grad, spec.momentum != 0 ? moment1 : nullptr,
                    params_[p].numel());
  }
  return losses;
}

double Reference::loss(int64_t iteration) {
  torch::NoGradGuard no_grad;
  return forward(iteration, 0, model_.spec->batch, true).item<double>();
}

Rig::Rig(std::shared_ptr<const Model> model, uint32_t devices, executor::DeviceOptions options)
    : model_(std::move(model)) {
  std::vector<ir::DeviceIndex> indices;
  for (uint32_t d = 0; d < devices; ++d)
    indices.push_back(d);
  fabric_ = std::make_unique<transport::LoopbackFabric>(indices);
  for (uint32_t d = 0; d < devices; ++d) {
    options.index = d;
    devices_.push_back(std::make_unique<executor::Device>(options, model_, fabric_->endpoint(d)));
  }
}
Rig::~Rig() = default;

Result<void> Rig::prepare(const ir::Strategy& strategy, ir::Epoch epoch, const Edit& edit) {
  for (ir::PlanKind kind : {ir::PlanKind::Train, ir::PlanKind::Eval}) {
    compiler::CompileOptions options{
        .kind = kind, .epoch = epoch, .devices = static_cast<uint32_t>(devices_.size())};
    PIPER_TRY(auto compiled, compiler::compile(model_->spec, strategy, options));
    if (edit)
      edit(compiled.plans);
    auto plans = std::make_shared<const ir::PlanSet>(std::move(compiled.plans));
    for (auto& device : devices_)
      PIPER_CHECK_OK(device->prepare(plans));
    if (kind == ir::PlanKind::Train)
      train_ = plans;
  }
  epoch_ = epoch;
  return {};
}

template <class Work> auto Rig::on_all(Work work) {
  using Outcome = decltype(work(*devices_[0]));
  std::vector<std::optional<Outcome>> outcomes(devices_.size());
  std::vector<std::thread> threads;
  for (size_t d = 0; d < devices_.size(); ++d)
    threads.emplace_back([&, d] { outcomes[d] = work(*devices_[d]); });
  for (std::thread& thread : threads)
    thread.join();
  return outcomes;
}

Result<void> Rig::start(const ir::Strategy& strategy, const Edit& edit) {
  PIPER_CHECK_OK(prepare(strategy, 0, edit));
  for (auto& device : devices_) {
    PIPER_CHECK_OK(device->initialize(0));
    PIPER_CHECK_OK(device->commit(0));
  }
  return {};
}

Result<void> Rig::change(const ir::Strategy& strategy) {
  auto from = train_;
  PIPER_CHECK_OK(prepare(strategy, epoch_ + 1));
  auto kinds = fast_options().optimizer.state();
  kinds.insert(kinds.begin(), ir::StateKind::Param);
  PIPER_TRY(auto moves, compiler::compile_migration(*from, *train_, *model_->spec, kinds));
  auto migration = std::make_shared<const ir::PlanSet>(std::move(moves));
  for (auto& device : devices_)
    PIPER_CHECK_OK(device->prepare(migration));
  for (auto& outcome : on_all([&](executor::Device& device) { return device.migrate(epoch_); }))
    PIPER_CHECK_OK(*outcome);
  for (auto& device : devices_)
    PIPER_CHECK_OK(device->commit(epoch_));
  return {};
}

Result<std::vector<executor::IterationResult>> Rig::run(int64_t iteration) {
  std::vector<executor::IterationResult> results;
  for (auto& outcome : on_all([&](executor::Device& device) { return device.run(iteration); })) {
    if (!outcome->ok())
      return outcome->error();
    results.push_back(**outcome);
  }
  return results;
}

Result<std::vector<executor::IterationResult>> Rig::evaluate(int64_t iteration) {
  std::vector<executor::IterationResult> results;
  for (auto& outcome :
       on_all([&](executor::Device& device) { return device.evaluate(iteration); })) {
    if (!outcome->ok())
      return outcome->error();
    results.push_back(**outcome);
  }
  return results;
}

double Rig::mean_loss(const std::vector<executor::IterationResult>& results) {
  double sum = 0;
  size_t count = 0;
  for (const auto& result : results)
    for (double loss : result.losses)
      sum += loss, ++count;
  return sum / static_cast<double>(count);
}

std::vector<at::Tensor> Rig::params() {
  std::vector<at::Tensor> params(model_->spec->params.size());
  for (auto& device : devices_) {
    const auto held = device->parameters();
    if (!held.ok())
      throw std::runtime_error(held.error().to_string());
    for (const auto& [id, tensor] : *held) {
      if (params[id.value].defined() && !params[id.value].equal(tensor))
        throw std::runtime_error("two devices have different copies of " +
                                 model_->spec->param(id).name);
      params[id.value] = tensor;
    }
  }
  return params;
}

executor::DeviceOptions fast_options() {
  executor::DeviceOptions options;
  options.optimizer.lr = 0.02;
  options.deadline = std::chrono::milliseconds(20'000);
  return options;
}

double difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    auto x = a[i].detach(), y = b[i].detach();
    if (!x.equal(y))
      worst = std::max(worst, ((x - y).abs().max() / y.abs().max()).item<double>());
  }
  return worst;
}

} // namespace piper::test
