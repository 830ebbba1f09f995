// Tensor, sequence and expert parallelism against one device, in float64. Partial sums are added in
// another order than on one device, so 1e-12 relative.
#include "compiler/frontend/model_builder.h"
#include "examples/models/registry.h"
#include "examples/models/rows.h"
#include "examples/models/weights.h"
#include "tests/parity/outcome.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <set>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

constexpr int kIterations = 3;
constexpr double kTolerance = 1e-12;

std::shared_ptr<const Model> llama() {
  return made(models::make_llama(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "d_ff": 24, "seq": 8,
          "batch": 16, "dtype": "float64", "sample_microbatches": 4})"));
}

std::shared_ptr<const Model> moe() {
  return made(models::make_moe(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "experts": 4, "top_k": 2,
          "d_ff": 12, "seq": 8, "batch": 16, "balance_weight": 0.1, "dtype": "float64",
          "sample_microbatches": 4})"));
}

std::shared_ptr<const Model> gpt(bool tied = false) {
  return made(models::make_gpt(fmt::format(
      R"({{"layers": 2, "d_model": 16, "heads": 4, "seq": 8, "batch": 16, "tied": {},
          "dtype": "float64", "sample_microbatches": 4}})",
      tied)));
}

Outcome train(const std::shared_ptr<const Model>& model, const Strategy& strategy,
              uint32_t devices) {
  return learn(model, strategy, devices, clipping());
}

Strategy named(const std::string& expression) {
  return Strategy().schedule(expression, 4);
}

} // namespace

TEST_CASE("tensor and sequence parallel learn what one device learns") {
  check_all(llama(), 4,
            {{"tp:2", 2},
             {"sp:2", 2},
             {"tp:2xdp:2", 4},
             {"sp:2xdp:2", 4},
             {"tp:2xzero1:2", 4},
             {"tp:2xzero3:2", 4},
             {"tp:2x1f1b:2", 4},
             {"sp:2x1f1b:2", 4},
             {"tp:2xdp:2x1f1b:2", 8},
             {"sp:2xzero2:2xzbv:2", 8}});
}

TEST_CASE("gpt, whose weights lie as PyTorch has them, is cut along rows and columns") {
  check_all(gpt(), 4,
            {{"tp:2", 2},
             {"tp:4", 4},
             {"sp:2", 2},
             {"sp:4", 4},
             {"tp:2xdp:2", 4},
             {"tp:2xzero1:2", 4},
             {"tp:2xzero3:2", 4},
             {"tp:2x1f1b:2", 4},
             {"tp:2xdp:2x1f1b:2", 8},
             {"sp:2xzero2:2xzbv:2", 8}});
}

TEST_CASE("a head that is tied to the embedding stays whole where others are cut") {
  check_all(gpt(true), 4, {{"tp:2", 2}, {"sp:2xdp:2", 4}, {"tp:2x1f1b:2", 4}});
}

TEST_CASE("heads that ranks cannot share evenly are refused") {
  const auto compiled = Cluster(gpt(), 3).compile(named("tp:3"));
  REQUIRE_FALSE(compiled.ok());
  CHECK(compiled.error().message == "'attn0' makes 4 pieces, which 3 devices cannot share evenly");
}

/// tanh, or a view of it: its backward reads the very memory of what the call gives.
struct Activated : torch::nn::Module {
  Activated(int64_t units, bool flat) : flat(flat) {
    weight = register_parameter("weight", at::zeros({units, 6, 6}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum;
    for (const at::Tensor& unit : weight.unbind(0)) {
      const at::Tensor made = at::tanh(at::matmul(x, unit));
      sum = sum.defined() ? sum + made : made;
    }
    return flat ? sum.flatten(1) : sum;
  }
  bool flat;
  at::Tensor weight;
};

TEST_CASE("a sum over ranks leaves alone what a backward has saved under another name") {
  for (const bool flat : {false, true}) {
    ModelBuilder b("activated");
    b.dtype(at::kDouble);
    Value x = b.input("x", {8, 2, 6}, at::kDouble);
    for (int i = 0; i < 2; ++i)
      x = b.call(
          {.name = fmt::format("tanh{}", i), .cut = {ir::Cut::Tensor, 2}},
          [flat, i](Piece piece) {
            return std::make_shared<Activated>(2 / piece.count, flat && i == 1);
          },
          x);
    x = b.call(
        "mean", [](const at::Tensor& y) { return (y * y).mean(); }, x);
    Model model = b.loss(x).value_or_throw();
    model.initializer = [](const std::string& name, at::Tensor& tensor, uint64_t seed) {
      models::fill_uniform(name, tensor, seed, 0.5);
      return true;
    };
    model.data = models::random_rows({{.input = "x", .shape = {2, 6}, .dtype = at::kDouble}}, 1);
    check_all(std::make_shared<const Model>(std::move(model)), 4, {{"tp:2", 2}, {"tp:2xdp:2", 4}});
  }
}

TEST_CASE("tensor parallel splits attention beside experts that all ranks have") {
  check_all(moe(), 4, {{"tp:2", 2}, {"sp:2", 2}, {"tp:2xdp:2", 4}});
}

TEST_CASE("expert parallel learns what one device learns") {
  check_all(moe(), 4,
            {{"dp:2", 2},
             {"1f1b:2", 2},
             {"ep:2", 2},
             {"ep:4", 4},
             {"dp:2xep:2", 4},
             {"ep:2xzero1:2", 4},
             {"ep:2xzero3:2", 4},
             {"ep:2x1f1b:2", 4},
             {"ep:2xzbv:2", 4},
             {"ep:2xdualpipev:2", 4},
             {"dp:2xep:2xdualpipe:2", 8}});
}

TEST_CASE("experts lie on ranks that share rows, on one block of them or on several") {
  check_all(moe(), 4,
            {{"tp:2xep:2", 2},
             {"sp:2xep:2", 2},
             {"tp:2xep:4", 4},
             {"sp:2xep:4", 4},
             {"tp:2xdp:2xep:2", 4},
             {"tp:2xzero1:2xep:2", 4},
             {"tp:2xzero3:2xep:2", 4},
             {"tp:2xep:2x1f1b:2", 4},
             {"tp:2xep:4x1f1b:2", 8},
             {"sp:2xep:2xzbv:2", 4},
             {"tp:2xep:2xdualpipev:2", 4}});
}

TEST_CASE("sharded calls are recomputed, split and fused as others are") {
  const auto model = moe();
  const Outcome single = train(model, named("single"), 1);
  const Strategy experts =
      Strategy()
          .split({}, 4)
          .replicate({}, {0, 1})
          .shard({{"call", std::vector<std::string>{"experts0", "experts1"}}}, {0, 1});
  check(train(model, Strategy(experts).recompute({}), 2), single);
  check(train(model, Strategy(experts).split_backward({}), 2), single);
  check(train(model, Strategy(experts).split_backward({}).recompute({}).fuse({}), 2), single);
  const Strategy tensors = Strategy().split({}, 4).shard_tensor({}, {0, 1}, 0, true);
  check(train(model, Strategy(tensors).recompute({}), 2), single);
  check(train(model, Strategy(tensors).split_backward({}).fuse({}), 2), single);
  const Strategy both =
      Strategy(tensors).shard({{"call", std::vector<std::string>{"experts0", "experts1"}}}, {0, 1});
  check(train(model, Strategy(both).recompute({}), 2), single);
  check(train(model, Strategy(both).split_backward({}).recompute({}).fuse({}), 2), single);

  const auto dense = gpt();
  const Outcome alone = train(dense, named("single"), 1);
  check(train(dense, Strategy(tensors).recompute({}), 2), alone);
  check(train(dense, Strategy(tensors).split_backward({}), 2), alone);
  check(train(dense, Strategy(tensors).split_backward({}).recompute({}).fuse({}), 2), alone);
}

TEST_CASE("an expert without a token is trained like any other") {
  // Of sixteen experts and few tokens, some have none in a microbatch.
  const auto model = made(models::make_moe(
      R"({"layers": 1, "d_model": 8, "heads": 2, "kv_heads": 1, "experts": 16, "top_k": 1,
          "d_ff": 4, "seq": 2, "batch": 8, "dtype": "float64", "sample_microbatches": 4})"));
  check_all(model, 4, {{"dp:2", 2}, {"ep:2", 2}, {"dp:2xep:2", 4}});
}

TEST_CASE("state moves between layouts that cut parameters and those that do not") {
  const bool dense = GENERATE(true, false);
  CAPTURE(dense);
  const auto model = dense ? gpt() : moe();
  Cluster still(model, 1, clipping());
  REQUIRE(still.start(named("single")).ok());
  Cluster moving(model, 4, clipping());
  REQUIRE(moving.start(named("single")).ok());
  std::vector<double> want, got;
  const auto layouts =
      dense
          ? std::vector<std::string>{"tp:2", "zero3:4", "tp:4", "tp:2xzero3:2", "1f1b:2", "sp:2"}
          : std::vector<std::string>{"tp:2", "ep:2",      "dp:2xep:2", "tp:2xep:2", "tp:2xzero3:2",
                                     "ep:4", "tp:2xep:4", "1f1b:2",    "sp:2"};
  for (const std::string& next : layouts) {
    INFO(next);
    if (auto changed = moving.change(named(next)); !changed.ok())
      FAIL(changed.error().to_string());
    want.push_back(still.step().value_or_throw());
    got.push_back(moving.step().value_or_throw());
  }
  CHECK(difference(got, want) <= kTolerance);
  CHECK(difference(moving.parameters().value_or_throw(), still.parameters().value_or_throw()) <=
        kTolerance);
}

TEST_CASE("control: ranks that keep their summand to themselves learn something else") {
  const auto model = moe();
  const Outcome single = train(model, named("single"), 1);
  Cluster cluster(model, 2, clipping());
  PlanSet plans = cluster.compile(named("tp:2")).value_or_throw();
  // What a cut call has whole (the norms of queries and keys) is summed over the block.
  size_t dropped = 0;
  for (Plan& plan : plans.plans) {
    std::set<EventId> gone;
    dropped += std::erase_if(plan.instructions, [&](const Instruction& each) {
      const bool drop =
          each.op == Opcode::AllReduce && plans.groups[each.group.value].layout == Layout::Partial;
      if (drop)
        gone.insert(each.records);
      return drop;
    });
    for (Instruction& each : plan.instructions)
      std::erase_if(each.waits, [&](EventId event) { return gone.contains(event); });
  }
  REQUIRE(dropped > 0);
  REQUIRE(cluster.start(std::move(plans)).ok());
  CHECK(difference(cluster.steps(kIterations).value_or_throw(), single.losses) > 1e-9);
  CHECK_FALSE(cluster.parameters().ok()); // each rank has norms of its own now
}
