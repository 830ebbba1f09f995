#include "tests/parity/outcome.h"

#include <cmath>

#include <catch2/catch.hpp>

namespace piper::test {

std::shared_ptr<const Model> made(Result<Model> model) {
  if (!model.ok())
    FAIL(model.error().to_string());
  return std::make_shared<const Model>(*std::move(model));
}

executor::OptimizerSpec clipping() {
  executor::OptimizerSpec optimizer;
  optimizer.clip_norm = 0.05;
  optimizer.eps = 1e-4; // a gradient that is only rounding is not divided by its own size
  return optimizer;
}

void started(Cluster& cluster, const ir::Strategy& strategy) {
  if (auto done = cluster.start(strategy); !done.ok())
    FAIL(done.error().to_string());
}

Outcome learn(Cluster& cluster, int iterations) {
  auto losses = cluster.steps(iterations);
  if (!losses.ok())
    FAIL(losses.error().to_string());
  auto parameters = cluster.parameters();
  if (!parameters.ok())
    FAIL(parameters.error().to_string());
  return {*std::move(losses), *std::move(parameters)};
}

Outcome learn(const std::shared_ptr<const Model>& model, const ir::Strategy& strategy,
              uint32_t devices, const executor::OptimizerSpec& optimizer, int iterations) {
  Cluster cluster(model, devices, optimizer);
  started(cluster, strategy);
  return learn(cluster, iterations);
}

void check(const Outcome& got, const Outcome& want) {
  constexpr double kTolerance = 1e-12;
  const double losses = difference(got.losses, want.losses);
  const double parameters = difference(got.parameters, want.parameters);
  INFO("relative difference of losses " << losses << ", of parameters " << parameters);
  CHECK(losses <= kTolerance);
  CHECK(parameters <= kTolerance);
  CHECK(std::isfinite(got.losses.back()));
  CHECK(got.losses.back() != got.losses.front()); // something was learned
}

void check_all(const std::shared_ptr<const Model>& model, int64_t microbatches,
               std::initializer_list<Entry> entries) {
  const auto named = [&](const char* expression) {
    return ir::Strategy().schedule(expression, microbatches);
  };
  const Outcome single = learn(model, named("single"), 1, clipping());
  for (const Entry& entry : entries) {
    INFO(entry.expression);
    check(learn(model, named(entry.expression), entry.devices, clipping()), single);
  }
}

} // namespace piper::test
