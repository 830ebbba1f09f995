#include "actors/executor/optimizer.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

namespace piper::executor {
namespace {

struct Arrays {
  at::Tensor param, grad, moment1, moment2;
  static Arrays make(at::ScalarType dtype, int64_t count) {
    auto generator = at::detail::createCPUGenerator(7);
    auto random = [&] { return at::randn({count}, generator, at::TensorOptions().dtype(dtype)); };
    return {random(), random(), random() * 0.1, random().square() * 0.1};
  }
  Arrays clone() const { return {param.clone(), grad.clone(), moment1.clone(), moment2.clone()}; }
  template <class T>
  void adamw(const OptimizerSpec& spec, UpdateStep step, int64_t begin, int64_t n) {
    executor::adamw(spec, step, param.data_ptr<T>() + begin, grad.data_ptr<T>() + begin,
                    moment1.data_ptr<T>() + begin, moment2.data_ptr<T>() + begin, n);
  }
};

double relative(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

} // namespace

TEST_CASE("AdamW is PyTorch's fused kernel") {
  auto dtype = GENERATE(at::kFloat, at::kDouble);
  auto beta1 = GENERATE(0.9, 0.4); // the lerp starts from the nearer end
  OptimizerSpec spec{.lr = 3e-3, .beta1 = beta1, .weight_decay = 0.1};
  Arrays ours = Arrays::make(dtype, 1003), theirs = ours.clone();
  at::Tensor grad = ours.grad.clone();
  for (int step = 1; step <= 4; ++step) {
    ours.grad.copy_(grad * step);
    theirs.grad.copy_(grad * step);
    if (dtype == at::kDouble)
      ours.adamw<double>(spec, {spec.lr, static_cast<double>(step)}, 0, 1003);
    else
      ours.adamw<float>(spec, {spec.lr, static_cast<double>(step)}, 0, 1003);
    at::_fused_adamw_({theirs.param}, {theirs.grad}, {theirs.moment1}, {theirs.moment2}, {},
                      {at::scalar_tensor(step, at::kFloat)}, spec.lr, spec.beta1, spec.beta2,
                      spec.weight_decay, spec.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
  double tolerance = dtype == at::kDouble ? 1e-14 : 1e-6;
  REQUIRE(relative(ours.param, theirs.param) < tolerance);
  REQUIRE(relative(ours.moment1, theirs.moment1) < tolerance);
  REQUIRE(relative(ours.moment2, theirs.moment2) < tolerance);
  REQUIRE(ours.grad.count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("SGD is torch::optim's") {
  auto momentum = GENERATE(0.0, 0.9);
  OptimizerSpec spec{
      .kind = OptimizerSpec::Kind::Sgd, .lr = 0.05, .weight_decay = 0.01, .momentum = momentum};
  Arrays ours = Arrays::make(at::kDouble, 77);
  at::Tensor param = ours.param.clone().requires_grad_(true), grad = ours.grad.clone();
  ours.moment1.zero_();
  torch::optim::SGD theirs({param},
                           torch::optim::SGDOptions(0.05).momentum(momentum).weight_decay(0.01));
  for (int step = 1; step <= 4; ++step) {
    ours.grad.copy_(grad * step);
    param.mutable_grad() = grad * step;
    sgd(spec, {spec.lr, static_cast<double>(step)}, ours.param.data_ptr<double>(),
        ours.grad.data_ptr<double>(), momentum != 0 ? ours.moment1.data_ptr<double>() : nullptr,
        77);
    theirs.step();
  }
  REQUIRE(relative(ours.param, param.detach()) < 1e-14);
  REQUIRE(ours.grad.count_nonzero().item<int64_t>() == 0);
}

TEST_CASE("an element's bits don't depend on where a range begins or how long it is") {
  OptimizerSpec spec;
  Arrays whole = Arrays::make(at::kFloat, 200), parts = whole.clone();
  UpdateStep step{1e-3, 3, 0.7};
  whole.adamw<float>(spec, step, 0, 200);
  int64_t begin = 0;
  for (int64_t n : {1, 3, 16, 31, 7, 64, 2, 76}) {
    parts.adamw<float>(spec, step, begin, n);
    begin += n;
  }
  REQUIRE(begin == 200);
  REQUIRE(whole.param.equal(parts.param));
  REQUIRE(whole.moment1.equal(parts.moment1));
  REQUIRE(whole.moment2.equal(parts.moment2));
}

TEST_CASE("a gradient factor is the same as scaled gradients") {
  OptimizerSpec spec;
  Arrays factor = Arrays::make(at::kDouble, 50), scaled = factor.clone();
  scaled.grad.mul_(0.3);
  factor.adamw<double>(spec, {1e-3, 1, 0.3}, 0, 50);
  scaled.adamw<double>(spec, {1e-3, 1, 1}, 0, 50);
  REQUIRE(factor.param.equal(scaled.param));
}

TEST_CASE("sums of squares") {
  at::Tensor x = Arrays::make(at::kDouble, 10'001).param;
  double sum = sum_of_squares(x.data_ptr<double>(), x.numel());
  REQUIRE(sum == Approx(x.square().sum().item<double>()).epsilon(1e-13));
  at::Tensor f = x.to(at::kFloat);
  REQUIRE(sum_of_squares(f.data_ptr<float>(), f.numel()) == Approx(sum).epsilon(1e-6));
  REQUIRE(sum_of_squares(f.data_ptr<float>(), 0) == 0);
}

TEST_CASE("the learning rate warms up and decays") {
  OptimizerSpec spec{.lr = 1};
  REQUIRE(spec.lr_at(0) == 1);
  REQUIRE(spec.lr_at(1'000'000) == 1);
  spec.warmup = 4;
  REQUIRE(spec.lr_at(0) == 0.25);
  REQUIRE(spec.lr_at(3) == 1);
  REQUIRE(spec.lr_at(100) == 1);
  spec.decay = 14;
  spec.min_lr = 0.1;
  REQUIRE(spec.lr_at(4) == 1);
  REQUIRE(spec.lr_at(9) == Approx(0.55));
  REQUIRE(spec.lr_at(14) == 0.1);
  REQUIRE(spec.lr_at(15) == 0.1);
}

TEST_CASE("the state that an optimizer keeps") {
  using ir::StateKind;
  REQUIRE((OptimizerSpec{}.state() ==
           std::vector{StateKind::Moment1, StateKind::Moment2, StateKind::Step}));
  OptimizerSpec sgd{.kind = OptimizerSpec::Kind::Sgd};
  REQUIRE(sgd.state().empty());
  sgd.momentum = 0.9;
  REQUIRE((sgd.state() == std::vector{StateKind::Moment1}));
}

} // namespace piper::executor
