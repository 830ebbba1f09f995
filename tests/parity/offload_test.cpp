// What leaves the device comes back as it was: strategies that offload against one device, in
// float64, loss by loss and parameter by parameter; and what it is good for.
#include "examples/models/registry.h"
#include "ir/memory_bound.h"
#include "tests/parity/outcome.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;

namespace {

std::shared_ptr<const Model> gpt(bool tied = false) {
  return made(models::make_gpt(fmt::format(
      R"({{"layers": 4, "d_model": 16, "heads": 2, "seq": 8, "batch": 24, "tied": {},
          "dtype": "float64"}})",
      tied)));
}
std::shared_ptr<const Model> mlp() {
  return made(models::make_mlp(R"({"layers": 7, "d_in": 6, "d_hidden": 10, "d_out": 4, "batch": 24,
                                   "skip": true, "dtype": "float64"})"));
}
std::shared_ptr<const Model> moe() {
  return made(models::make_moe(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "experts": 4, "top_k": 2,
          "d_ff": 12, "seq": 8, "batch": 24, "dtype": "float64"})"));
}

ir::Strategy named(const std::string& expression) {
  return ir::Strategy().schedule(expression, 4);
}

Outcome train(const std::shared_ptr<const Model>& model, const ir::Strategy& strategy,
              uint32_t devices) {
  Cluster cluster(model, devices);
  started(cluster, strategy);
  Outcome learned = learn(cluster);
  for (uint32_t d = 0; d < devices; ++d)
    CHECK((cluster.device(d).offloaded_peak() > 0) ==
          std::any_of(strategy.directives.begin(), strategy.directives.end(), [](const auto& each) {
            return std::holds_alternative<ir::Offload>(each.body);
          }));
  return learned;
}

const ir::Offload kActivations{.filter = {}};
const ir::Offload kState{.filter = {}, .activations = false, .optimizer = true, .params = true};
const ir::Offload kOptimizer{.filter = {}, .activations = false, .optimizer = true};
const ir::Offload kEverything{.filter = {}, .activations = true, .optimizer = true, .params = true};

int64_t peak(const std::shared_ptr<const Model>& model, const ir::Strategy& strategy) {
  Cluster cluster(model, 1);
  started(cluster, strategy);
  learn(cluster);
  const auto bounds =
      ir::bound_memory(cluster.plans(), *model->spec, executor::OptimizerSpec().state());
  REQUIRE(bounds.ok());
  const int64_t measured = cluster.device(0).peak_bytes();
  INFO("measured " << measured << ", bound " << bounds->front().peak());
  CHECK(measured <= bounds->front().peak());
  return measured;
}

} // namespace

TEST_CASE("what is offloaded comes back as it was") {
  struct Entry {
    ir::Strategy strategy;
    uint32_t devices;
  };
  const auto apart = [] { return named("single").split_backward({}); };
  const Entry entries[] = {
      {named("single").offload(kActivations), 1},
      {named("single").offload(kActivations).prefetch({}, 0), 1},
      {named("single").offload(kActivations).prefetch({}, 3), 1},
      {named("single").offload({.filter = {{"PASS", "F"}}}).offload(kState), 1},
      {named("single").fuse({{"PASS", "F"}}).offload(kActivations), 1},
      {named("single").recompute({}).offload(kActivations), 1},
      {apart().offload(kActivations), 1},
      {named("dp:2").offload(kOptimizer), 2},
      {named("zero1:2").offload(kOptimizer).offload(kActivations), 2},
      {named("zero3:2").offload(kEverything), 2},
      {named("1f1b:2").offload(kEverything), 2},
      {named("1f1b:2").recompute({}).offload(kActivations), 2},
      {named("interleaved:2").offload(kActivations), 2},
      {apart()
           .order({{{{"PASS", "F"}}}, {{{"PASS", "BI"}}}, {{{"PASS", "BW"}}}})
           .offload(kActivations),
       1},
      {named("zbv:2").offload(kActivations), 2},
      {named("zbh2:2").recompute({}).offload(kActivations), 2},
      {named("dualpipe:2").offload(kActivations), 2},
      {named("zero3:2x1f1b:2").offload(kEverything), 4},
  };
  const std::pair<const char*, std::shared_ptr<const Model>> models[] = {
      {"gpt", gpt()}, {"gpt tied", gpt(true)}, {"mlp", mlp()}};
  for (const auto& [name, model] : models) {
    const Outcome want = train(model, named("single"), 1);
    for (const Entry& entry : entries) {
      if (std::string(name) == "gpt tied" && entry.devices == 4)
        continue; // covered by gpt
      INFO(name << "\n" << entry.strategy.to_json());
      check(train(model, entry.strategy, entry.devices), want);
    }
  }
}

TEST_CASE("what a block of ranks shares can be offloaded by each of them") {
  const auto model = moe();
  const Outcome want = train(model, named("single"), 1);
  for (const char* expression : {"ep:2", "tp:2", "sp:2", "ep:2xdualpipev:2"}) {
    INFO(expression);
    const uint32_t devices = std::string(expression).find("pipe") == std::string::npos ? 2 : 4;
    check(train(model, named(expression).offload(kActivations), devices), want);
  }
}

TEST_CASE("state moves into another memory and out of it while a job runs") {
  const auto model = gpt();
  Cluster cluster(model, 2), plain(model, 2);
  REQUIRE(cluster.start(named("dp:2")).ok());
  REQUIRE(plain.start(named("dp:2")).ok());
  for (const ir::Strategy& strategy :
       {named("zero3:2").offload(kEverything), named("1f1b:2").offload(kOptimizer),
        named("1f1b:2").offload(kState), named("zero1:2")}) {
    INFO(strategy.to_json());
    REQUIRE(cluster.change(strategy).ok());
    check(learn(cluster), learn(plain));
  }
}

TEST_CASE("offloading lowers the peak, as it is foretold") {
  const auto model = made(models::make_gpt(
      R"({"layers": 8, "d_model": 64, "heads": 2, "seq": 32, "batch": 16, "dtype": "float32"})"));
  const auto all_forwards_first = [] {
    return ir::Strategy().split({}, 4).place({}, {0}).order({{{{"PASS", "F"}}}, {{{"PASS", "B"}}}});
  };
  const int64_t plain = peak(model, all_forwards_first());
  const int64_t activations = peak(model, all_forwards_first().offload(kActivations));
  const int64_t everything = peak(model, all_forwards_first().offload(kEverything));
  CHECK(static_cast<double>(activations) < 0.7 * static_cast<double>(plain));
  CHECK(static_cast<double>(everything) < 0.7 * static_cast<double>(activations));
  // All backwards for inputs come before those for weights: what they leave has to go, too.
  const auto put_off = [] {
    return ir::Strategy().split({}, 4).place({}, {0}).split_backward({}).order(
        {{{{"PASS", "F"}}}, {{{"PASS", "BI"}}}, {{{"PASS", "BW"}}}});
  };
  CHECK(static_cast<double>(peak(model, put_off().offload(kActivations))) <
        0.7 * static_cast<double>(peak(model, put_off())));
}

TEST_CASE("parameters that are whole on several devices are not offloaded") {
  compiler::CompileOptions options;
  const auto compiled = compiler::compile(gpt()->spec, named("dp:2").offload(kState), options);
  REQUIRE_FALSE(compiled.ok());
  CHECK(compiled.error().message.find("are whole on each of 2 replicas") != std::string::npos);
  CHECK(compiled.error().hint.find("shard_params") != std::string::npos);
}
