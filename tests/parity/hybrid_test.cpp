// Hybrid sharding: ZeRO within sub-groups of replicas, copies across them. What one device learns,
// in float64 to 1e-12; what a rank keeps and sends, by the formulas.
#include "examples/models/registry.h"
#include "tests/parity/outcome.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

constexpr int kIterations = 3;

std::shared_ptr<const Model> gpt(bool tied) {
  return made(models::make_gpt(fmt::format(
      R"({{"layers": 2, "d_model": 16, "heads": 2, "seq": 8, "batch": 16, "tied": {},
          "dtype": "float64", "sample_microbatches": 8}})",
      tied)));
}

std::shared_ptr<const Model> llama() {
  return made(models::make_llama(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "d_ff": 24, "seq": 8,
          "batch": 16, "dtype": "float64", "sample_microbatches": 8})"));
}

std::shared_ptr<const Model> moe() {
  return made(models::make_moe(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "experts": 4, "top_k": 2,
          "d_ff": 12, "seq": 8, "batch": 16, "balance_weight": 0.1, "dtype": "float64",
          "sample_microbatches": 8})"));
}

std::shared_ptr<const Model> mlp() {
  return made(models::make_mlp(
      R"({"layers": 5, "d_in": 64, "d_hidden": 64, "d_out": 64, "batch": 16, "dtype": "float64"})"));
}

Outcome outcome_of(Cluster& cluster, std::vector<double> losses) {
  auto parameters = cluster.parameters();
  if (!parameters.ok())
    FAIL(parameters.error().to_string());
  return {std::move(losses), *std::move(parameters)};
}

std::unique_ptr<Cluster> started(const std::shared_ptr<const Model>& model,
                                 const Strategy& strategy, uint32_t devices,
                                 const executor::OptimizerSpec& optimizer) {
  auto cluster = std::make_unique<Cluster>(model, devices, optimizer);
  if (auto done = cluster->start(strategy); !done.ok())
    FAIL(done.error().to_string());
  return cluster;
}

Outcome train(const std::shared_ptr<const Model>& model, const Strategy& strategy, uint32_t devices,
              const executor::OptimizerSpec& optimizer = clipping()) {
  return learn(model, strategy, devices, optimizer);
}

Strategy named(const std::string& expression) {
  return Strategy().schedule(expression, 8);
}

/// ZeRO of this level over n replicas within sub-groups of k, a bucket a layer.
Strategy zero(int level, uint32_t n, int64_t k) {
  Replicate replicate{.shard_optimizer = level >= 1,
                      .shard_grads = level >= 2,
                      .shard_params = level >= 3,
                      .shard_within = k,
                      .bucket_mb = 1e-9};
  for (uint32_t device = 0; device < n; ++device)
    replicate.devices.push_back(device);
  return Strategy().replicate(replicate);
}

double parameter_bytes(const Model& model) {
  double bytes = 0;
  for (const ModelParam& param : model.spec->params)
    bytes += static_cast<double>(param.type.bytes(0));
  return bytes;
}

double bytes_of(Cluster& cluster, uint32_t device, const std::string& holder) {
  for (const auto& each : cluster.device(device).holders())
    if (each.what == holder)
      return static_cast<double>(each.bytes);
  return 0;
}

} // namespace

TEST_CASE("state sharded within sub-groups learns what one device learns") {
  for (const auto& model : {gpt(false), gpt(true), llama()})
    check_all(model, 8,
              {{"zero1:4,within=2", 4},
               {"zero2:4,within=2", 4},
               {"zero3:4,within=2", 4},
               {"zero3:4,within=4", 4},
               {"zero1:4,within=2x1f1b:2", 8},
               {"zero2:4,within=2x1f1b:2", 8},
               {"zero3:4,within=2x1f1b:2", 8},
               {"zero1:4,within=2xdualpipe:2", 8},
               {"zero3:8,within=4", 8}});
}

TEST_CASE("sub-groups of replicas that are blocks of ranks, or share experts") {
  check_all(
      llama(), 8,
      {{"tp:2xzero1:4,within=2", 8}, {"tp:2xzero3:4,within=2", 8}, {"sp:2xzero2:4,within=2", 8}});
  // A sub-group of two that share the experts has each of them once: theirs are not sharded.
  check_all(moe(), 8,
            {{"ep:2xzero1:2,within=2", 4},
             {"ep:2xzero3:4,within=2", 8},
             {"ep:2xzero3:4,within=4", 8},
             {"ep:4xzero2:2,within=2", 8}});
}

TEST_CASE("small buckets, one gather at a time, backwards in two, and no clipping") {
  const auto model = gpt(true);
  const executor::OptimizerSpec plain;
  const Outcome single = train(model, named("single"), 1, plain);
  for (int level : {1, 2, 3}) {
    CAPTURE(level);
    const Strategy whole = Strategy(zero(level, 4, 2)).split({}, 2);
    check(train(model, Strategy(whole).prefetch({}, 0), 4, plain), single);
    check(train(model, Strategy(whole).split_backward({}).fuse({{"PASS", "F"}}), 4, plain), single);
    check(train(model, Strategy(whole).recompute({}), 4, plain), single);
  }
}

TEST_CASE("from data parallel to hybrid sharding to ZeRO-3 while it trains") {
  for (const auto& model : {gpt(true), llama()}) {
    const auto still = started(model, named("single"), 1, clipping());
    const auto moving = started(model, named("dp:4"), 8, clipping());
    std::vector<double> want, got;
    for (const char* next : {"dp:4", "zero1:4,within=2", "zero3:4,within=2", "zero3:4",
                             "zero2:4,within=2", "zero3:4,within=2x1f1b:2", "zero3:8,within=4",
                             "zero1:8,within=2", "tp:2xzero3:4,within=2", "single"}) {
      if (std::string_view(next).starts_with("tp") && model->spec->name != "llama")
        continue;
      INFO(next);
      if (auto changed = moving->change(named(next)); !changed.ok())
        FAIL(changed.error().to_string());
      want.push_back(still->step().value_or_throw());
      got.push_back(moving->step().value_or_throw());
    }
    check(outcome_of(*moving, got), outcome_of(*still, want));
  }
}

TEST_CASE("a rank keeps the formula's share, with the sub-group's size in place of N") {
  const auto model = mlp();
  const double all = parameter_bytes(*model);
  for (const auto& [n, k] : {std::pair(4u, 2), std::pair(8u, 2), std::pair(8u, 4)})
    for (int level : {1, 2, 3}) {
      CAPTURE(n, k, level);
      const auto cluster = started(model, zero(level, n, k), n, {});
      cluster->step().value_or_throw();
      for (uint32_t device = 0; device < n; ++device) {
        const auto share = [&](int from) { return level >= from ? all / k : all; };
        CHECK(bytes_of(*cluster, device, "parameters") == Approx(share(3)).epsilon(0.03));
        CHECK(bytes_of(*cluster, device, "gradients") == Approx(share(2)).epsilon(0.03));
        CHECK(bytes_of(*cluster, device, "optimizer") == Approx(2 * share(1)).epsilon(0.03));
        CHECK(bytes_of(*cluster, device, "gathered parameters") == 0);
        CHECK(bytes_of(*cluster, device, "whole gradients") == 0);
      }
    }
}

TEST_CASE("a rank sends what the formulas say") {
  // P bytes within k of n: a reduce-scatter and a gather (of ZeRO-3 two) of P (k-1)/k each, and an
  // all-reduce of P/k over n/k: 2 P/k (n/k-1)/(n/k). And the commit's 8 bytes over all.
  const auto model = mlp();
  for (const auto& [n, k] :
       {std::pair(4u, 2u), std::pair(8u, 2u), std::pair(8u, 4u), std::pair(4u, 4u)})
    for (int level : {1, 2, 3}) {
      CAPTURE(n, k, level);
      const auto cluster = started(model, zero(level, n, k), n, {});
      cluster->step().value_or_throw();
      uint64_t bytes = 0; // with padding
      for (const Bucket& bucket : cluster->plans().buckets)
        bytes += static_cast<uint64_t>(bucket.numel * size_of(bucket.dtype));
      const uint64_t within = (level < 3 ? 2 : 3) * bytes / k * (k - 1);
      const uint64_t across = 2 * bytes / k / (n / k) * (n / k - 1);
      const uint64_t commit = 2 * 8 * (n - 1) / n;
      for (uint32_t device = 0; device < n; ++device)
        CHECK(cluster->last(device).bytes_sent == within + across + commit);
    }
}

TEST_CASE("control: sub-groups that keep their sums to themselves learn something else") {
  const auto model = gpt(false);
  const Outcome single = train(model, named("single"), 1);
  Cluster cluster(model, 4, clipping());
  PlanSet plans = cluster.compile(named("zero1:4,within=2")).value_or_throw();
  for (Plan& plan : plans.plans) {
    for (const Instruction& sum : plan.instructions)
      if (sum.op == Opcode::AllReduce)
        for (Instruction& each : plan.instructions)
          if (each.op == Opcode::ReduceScatter && each.buckets == sum.buckets)
            each.records = sum.records;
    REQUIRE(std::erase_if(plan.instructions, [](const Instruction& each) {
              return each.op == Opcode::AllReduce;
            }) > 0);
  }
  REQUIRE(cluster.start(std::move(plans)).ok());
  CHECK(difference(cluster.steps(kIterations).value_or_throw(), single.losses) > 1e-9);
  CHECK_FALSE(cluster.parameters().ok()); // each sub-group has its own now
}
