// One device: what it trains is what a loop by hand trains.
#include "tests/executor/rig.h"

#include "actors/executor/optimizer.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

namespace piper::test {
namespace {

using executor::DeviceOptions;
using executor::OptimizerSpec;

ir::Strategy alone(int64_t microbatches = 1) {
  ir::Strategy strategy;
  if (microbatches > 1)
    strategy.split({}, microbatches);
  return strategy.place({}, {0});
}

/// Trains `iterations` on one device and by hand; the difference of parameters and losses.
double train_both(const std::shared_ptr<const Model>& model, const ir::Strategy& strategy,
                  int64_t microbatches, DeviceOptions options, int64_t iterations = 3) {
  Rig rig(model, 1, options);
  Reference reference(*model, options);
  rig.start(strategy).value_or_throw();
  double worst = 0;
  for (int64_t i = 0; i < iterations; ++i) {
    auto result = rig.run(i).value_or_throw().front();
    auto losses = reference.step(i, microbatches);
    REQUIRE(result.losses.size() == losses.size());
    for (size_t m = 0; m < losses.size(); ++m)
      worst = std::max(worst, std::abs(result.losses[m] - losses[m]) / std::abs(losses[m]));
    if (options.optimizer.clip_norm > 0)
      REQUIRE(result.grad_norm == Approx(reference.grad_norm()).epsilon(1e-12));
  }
  return std::max(worst, difference(rig.params(), reference.params()));
}

} // namespace

TEST_CASE("one device trains bitwise what a loop by hand trains") {
  auto microbatches = GENERATE(1, 3);
  REQUIRE(train_both(skip_model(), alone(microbatches), microbatches, fast_options()) == 0);
}

TEST_CASE("fused calls compute the same bits as calls one by one") {
  auto microbatches = GENERATE(1, 3);
  ir::Strategy fused = alone(microbatches);
  SECTION("all as one chunk") {
    fused.fuse({});
  }
  SECTION("forward as one, backward in two") {
    fused.fuse({{"PASS", "F"}});
    fused.fuse({{"PASS", "B"}, {"layer", std::vector<int64_t>{0, 1}}});
    fused.fuse({{"PASS", "B"}, {"layer", std::vector<int64_t>{2, 3}}});
  }
  SECTION("backward as one over four forwards") {
    fused.fuse({{"PASS", "B"}});
  }
  REQUIRE(train_both(skip_model(), fused, microbatches, fast_options()) == 0);
}

TEST_CASE("a module called twice and tied weights are one parameter") {
  REQUIRE(train_both(shared_model(), alone(), 1, fast_options()) < 1e-12);
  REQUIRE(train_both(shared_model(), alone(3), 3, fast_options()) < 1e-12);
  ir::Strategy fused = alone(3);
  fused.fuse({});
  REQUIRE(train_both(shared_model(), fused, 3, fast_options()) < 1e-12);
}

TEST_CASE("clipping, SGD and the learning-rate schedule") {
  DeviceOptions options = fast_options();
  SECTION("clip") {
    options.optimizer.clip_norm = 0.05;
  }
  SECTION("clip that never bites") {
    options.optimizer.clip_norm = 1e6;
  }
  SECTION("sgd") {
    options.optimizer.kind = OptimizerSpec::Kind::Sgd;
    options.optimizer.weight_decay = 0.01;
  }
  SECTION("momentum") {
    options.optimizer.kind = OptimizerSpec::Kind::Sgd;
    options.optimizer.momentum = 0.9;
  }
  SECTION("schedule") {
    options.optimizer.warmup = 2;
    options.optimizer.decay = 4;
    options.optimizer.min_lr = 1e-3;
  }
  REQUIRE(train_both(skip_model(), alone(2), 2, options, 5) < 1e-12);
}

TEST_CASE("the reference tells a wrong gradient scale") {
  // So that the comparisons above mean something.
  Rig rig(skip_model(), 1, fast_options());
  rig.start(alone(),
            [](ir::PlanSet& plans) {
              for (ir::Instruction& instruction : plans.plans[0].instructions)
                if (instruction.op == ir::Opcode::Seed)
                  instruction.scale = 1.01;
            })
      .value_or_throw();
  auto model = skip_model();
  Reference reference(*model, fast_options());
  rig.run(0).value_or_throw();
  reference.step(0, 1);
  REQUIRE(difference(rig.params(), reference.params()) > 1e-12);
}

TEST_CASE("evaluation runs on held-out rows and changes nothing") {
  auto model = skip_model();
  Rig rig(model, 1, fast_options());
  Reference reference(*model, fast_options());
  rig.start(alone()).value_or_throw();
  rig.run(0).value_or_throw();
  reference.step(0, 1);
  auto before = *rig.device(0).parameter_hashes();
  auto result = rig.evaluate(5).value_or_throw().front();
  REQUIRE((result.losses == std::vector<double>{reference.loss(5)}));
  REQUIRE((*rig.device(0).parameter_hashes() == before));
  rig.run(1).value_or_throw();
  reference.step(1, 1);
  REQUIRE(difference(rig.params(), reference.params()) == 0);
}

TEST_CASE("an iteration leaves no memory behind, and its figures add up") {
  Rig rig(skip_model(), 1, fast_options());
  rig.start(alone(3)).value_or_throw();
  rig.run(0).value_or_throw();
  int64_t live = rig.device(0).live_bytes();
  auto result = rig.run(1).value_or_throw().front();
  REQUIRE(rig.device(0).live_bytes() == live);
  REQUIRE(rig.device(0).peak_bytes() > live);
  REQUIRE(result.iteration == 1);
  REQUIRE(result.seconds > 0);
  REQUIRE(result.busy_seconds + result.idle_seconds == Approx(result.seconds));

  int64_t held = 0, parameters = 0;
  for (const auto& holder : rig.device(0).holders()) {
    held += holder.bytes;
    if (holder.what == "parameters" || holder.what == "gradients")
      parameters += holder.bytes;
    else
      REQUIRE((holder.what == "optimizer" || holder.what == "constants"));
  }
  REQUIRE(held == live);
  REQUIRE(parameters > 0);
}

TEST_CASE("parameters are handed out as copies, hashes are of their bytes") {
  Rig rig(skip_model(), 1, fast_options());
  rig.start(alone()).value_or_throw();
  auto before = *rig.device(0).parameter_hashes();
  int64_t live = rig.device(0).live_bytes();
  auto copies = rig.params();
  REQUIRE(rig.device(0).live_bytes() == live);
  for (at::Tensor& copy : copies)
    copy.zero_();
  REQUIRE((*rig.device(0).parameter_hashes() == before));
  rig.run(0).value_or_throw();
  auto after = *rig.device(0).parameter_hashes();
  REQUIRE(after.size() == before.size());
  for (size_t i = 0; i < after.size(); ++i)
    REQUIRE(after[i].second != before[i].second);
}

TEST_CASE("initial weights are the model's, also after training") {
  auto model = skip_model();
  Rig rig(model, 1, fast_options());
  rig.start(alone()).value_or_throw();
  auto initial = *rig.device(0).parameter_hashes();
  Reference reference(*model, fast_options());
  REQUIRE(difference(rig.params(), reference.params()) == 0);
  rig.run(0).value_or_throw();
  REQUIRE((*rig.device(0).parameter_hashes() != initial));
  REQUIRE(rig.device(0).initialize(0).ok());
  REQUIRE((*rig.device(0).parameter_hashes() == initial));
  rig.run(0).value_or_throw();
  reference.step(0, 1); // moments and steps began anew too
  REQUIRE(difference(rig.params(), reference.params()) == 0);
}

TEST_CASE("a plan for another model is refused") {
  Rig rig(skip_model(), 1), other(shared_model(), 1);
  ir::Strategy strategy = alone();
  auto compiled =
      compiler::compile(shared_model()->spec, strategy, {.devices = 1}).value_or_throw();
  auto refused =
      rig.device(0).prepare(std::make_shared<const ir::PlanSet>(std::move(compiled.plans)));
  REQUIRE(refused.error().kind == ErrorKind::User);
  REQUIRE(refused.error().message == "the plan was made for another model");
  REQUIRE(refused.error().where == "device 0, prepare");
  REQUIRE(rig.run(0).error().message == "no epoch has been committed");
}

TEST_CASE("a factory that makes another module than the model has is refused") {
  Model model = *skip_model();
  model.modules[1].make = model.modules[0].make; // 6 x 8 instead of 8 x 8
  Rig rig(std::make_shared<const Model>(model), 1);
  auto refused = rig.start(alone());
  REQUIRE(refused.error().to_string() ==
          "device 0, F b @0: module b: parameter 'linear.weight' is f64[8,6], but the model has "
          "f64[8,8]\n  a factory must make the same module every time");
  REQUIRE(rig.device(0).live_bytes() == 0);
}

} // namespace piper::test
