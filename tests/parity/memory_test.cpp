// What a strategy does to memory, measured by the counting allocator while it trains.
#include "examples/models/registry.h"
#include "tests/parity/cluster.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;

namespace {

std::shared_ptr<const Model> gpt() {
  auto model = models::make_gpt(R"({"layers": 8, "d_model": 64, "heads": 2, "seq": 32, "batch": 8,
                                    "dtype": "float32"})");
  if (!model.ok())
    FAIL(model.error().to_string());
  return std::make_shared<const Model>(*std::move(model));
}

/// Trains some iterations.
std::unique_ptr<Cluster> trained(const ir::Strategy& strategy, uint32_t devices) {
  auto cluster = std::make_unique<Cluster>(gpt(), devices);
  if (auto started = cluster->start(strategy); !started.ok())
    FAIL(started.error().to_string());
  if (auto losses = cluster->steps(3); !losses.ok())
    FAIL(losses.error().to_string());
  return cluster;
}

ir::Strategy named(const std::string& expression, int64_t microbatches) {
  return ir::Strategy().schedule(expression, microbatches);
}

double bytes_of(Cluster& cluster, uint32_t device, const std::string& holder) {
  for (const auto& each : cluster.device(device).holders())
    if (each.what == holder)
      return static_cast<double>(each.bytes);
  return 0;
}

double parameter_bytes() {
  double bytes = 0;
  const auto model = gpt();
  for (const auto& param : model->spec->params)
    bytes += static_cast<double>(param.type.bytes(0));
  return bytes;
}

} // namespace

TEST_CASE("ZeRO keeps what its formula says") {
  const double all = parameter_bytes();
  for (const double n : {2, 4})
    for (int level = 0; level <= 3; ++level) {
      const std::string name = fmt::format("{}:{}", level ? fmt::format("zero{}", level) : "dp", n);
      INFO(name);
      const auto cluster = trained(named(name, static_cast<int64_t>(n)), static_cast<uint32_t>(n));
      for (uint32_t device = 0; device < n; ++device) {
        const auto share = [&](int from) { return level >= from ? all / n : all; };
        CHECK(bytes_of(*cluster, device, "parameters") == Approx(share(3)).epsilon(0.03));
        CHECK(bytes_of(*cluster, device, "gradients") == Approx(share(2)).epsilon(0.03));
        CHECK(bytes_of(*cluster, device, "optimizer") == Approx(2 * share(1)).epsilon(0.03));
        // Nothing is whole between iterations.
        CHECK(bytes_of(*cluster, device, "gathered parameters") == 0);
        CHECK(bytes_of(*cluster, device, "whole gradients") == 0);
      }
    }
}

TEST_CASE("sharding lowers the peak, and gathering ahead costs a bucket") {
  const auto peak = [](const ir::Strategy& strategy) {
    return trained(strategy, 4)->device(0).peak_bytes();
  };
  const auto dp = peak(named("dp:4", 4)), zero1 = peak(named("zero1:4", 4)),
             zero2 = peak(named("zero2:4", 4)), zero3 = peak(named("zero3:4", 4));
  CHECK(zero1 < dp);
  CHECK(zero2 < zero1);
  CHECK(zero3 < zero2);
  CHECK(peak(named("zero3:4", 4).prefetch({}, 20)) > zero3);
}

TEST_CASE("recomputing lowers the peak") {
  const auto peak = [](bool recompute) {
    ir::Strategy strategy = ir::Strategy().split({}, 1).place({}, {0});
    if (recompute)
      strategy.recompute({{"layer", "*"}});
    return trained(strategy, 1)->device(0).peak_bytes();
  };
  CHECK(static_cast<double>(peak(true)) < 0.7 * static_cast<double>(peak(false)));
}

TEST_CASE("a backward for inputs frees what only it needs") {
  // All forwards, then all backwards for inputs, then those for weights: output gradients come, and
  // activations go. 1.05 of the peak of whole backwards; 1.28 where the first ones free nothing.
  const auto strategy = [](bool split) {
    ir::Strategy it = ir::Strategy().split({}, 4).place({}, {0});
    if (!split)
      return it.order({{{{"PASS", "F"}}}, {{{"PASS", "B"}}}});
    return it.split_backward({}).order({{{{"PASS", "F"}}}, {{{"PASS", "BI"}}}, {{{"PASS", "BW"}}}});
  };
  const auto whole = trained(strategy(false), 1)->device(0).peak_bytes();
  const auto halves = trained(strategy(true), 1)->device(0).peak_bytes();
  CHECK(static_cast<double>(halves) < 1.1 * static_cast<double>(whole));
}
