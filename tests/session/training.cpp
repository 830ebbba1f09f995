#include "training.h"

#include "examples/models/registry.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>

namespace piper::test {

Model mlp(const std::string& config) {
  return models::make_mlp(config).value_or_throw();
}

ir::Strategy named(const std::string& expression, int64_t microbatches) {
  ir::Strategy strategy;
  strategy.name = expression;
  strategy.schedule(expression, microbatches);
  return strategy;
}

SessionOptions options(uint32_t devices) {
  SessionOptions options;
  options.devices = devices;
  options.optimizer.lr = 0.01;
  options.deadline = std::chrono::seconds(20);
  return options;
}

std::unique_ptr<Session> open(const std::string& strategy, SessionOptions options, Model model) {
  auto session = Session::create(std::move(model), named(strategy), std::move(options));
  if (!session.ok())
    FAIL(session.error().to_string());
  return *std::move(session);
}

std::vector<double> losses(Session& session, int64_t iterations) {
  std::vector<double> all;
  auto result = session.run(iterations, [&](const StepResult& step) {
    all.push_back(step.loss);
    return true;
  });
  if (!result.ok())
    FAIL(result.error().to_string());
  return all;
}

std::vector<double> undisturbed(int64_t iterations, const std::string& strategy) {
  return losses(*open(strategy, options(2)), iterations);
}

void check_timeline(const ir::Timeline& timeline) {
  std::map<std::pair<ir::DeviceIndex, int32_t>, ir::TimelineSpan> forwards, backwards;
  double latest = 0;
  for (const ir::TimelineLane& lane : timeline.lanes) {
    double free = 0;
    for (const ir::TimelineSpan& span : lane.spans) {
      INFO("device " << lane.device << ", " << span.name);
      CHECK(span.start >= free);
      CHECK(span.end >= span.start);
      free = span.end;
      if (span.op == ir::Opcode::Forward)
        forwards[{lane.device, span.microbatch}] = span;
      else if (span.op == ir::Opcode::Backward)
        backwards[{lane.device, span.microbatch}] = span;
    }
    latest = std::max(latest, free);
  }
  CHECK(timeline.end() == latest);
  CHECK(timeline.origin > 0);
  REQUIRE(forwards.size() == 4);
  REQUIRE(backwards.size() == 4);
  for (int32_t m : {0, 1}) {
    CHECK(forwards[{1, m}].start > forwards[{0, m}].end);
    CHECK(backwards[{1, m}].start > forwards[{1, m}].end);
    CHECK(backwards[{0, m}].start > backwards[{1, m}].end);
  }
}

bool close(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size())
    return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= 1e-12 * std::abs(a[i])))
      return false;
  return true;
}

void wait_for_changes(const Session& session, size_t count) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (session.metrics().waiting.size() != count) {
    if (std::chrono::steady_clock::now() > give_up)
      FAIL("no " << count << " changes wait");
    std::this_thread::yield();
  }
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

Model watched(std::shared_ptr<Builds> builds, Model model) {
  for (ModuleFactory& factory : model.modules)
    factory.make = [builds, make = factory.make] {
      if (builds->fail)
        throw std::runtime_error("the disk with the weights is on fire");
      std::this_thread::sleep_for(std::chrono::milliseconds(builds->sleep_ms));
      return make();
    };
  return model;
}

} // namespace piper::test
