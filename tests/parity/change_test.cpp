// The strategy changes while training goes on; what is learned does not.
#include "examples/models/registry.h"
#include "tests/parity/outcome.h"

#include <cstdlib>
#include <random>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;

namespace {

void check_sequence(std::shared_ptr<const Model> model, unsigned seed) {
  const char* strategies[] = {"single",
                              "dp:2",
                              "dp:4",
                              "zero1:2",
                              "zero1:4",
                              "gpipe:2",
                              "1f1b:2",
                              "1f1b:3",
                              "gpipe:4",
                              "1f1b:4",
                              "dp:2x1f1b:2",
                              "zero1:2xgpipe:2",
                              "zero2:2",
                              "zero3:4",
                              "zero3:2x1f1b:2",
                              "zbh1:2",
                              "zero1:4,within=2",
                              "zero3:4,within=2",
                              "interleaved:2",
                              "zbv:2",
                              "dualpipev:2",
                              "dualpipe:2"};
  std::mt19937 random(seed);
  Cluster changing(model, 4), still(model, 1);
  REQUIRE(still.start(ir::Strategy().schedule("single", 4)).ok());
  std::string trail;
  std::vector<double> got, want;
  for (int change = 0; change < 6; ++change) {
    const char* name = strategies[random() % std::size(strategies)];
    trail += std::string(" ") + name;
    INFO("seed " << seed << ":" << trail);
    const ir::Strategy next = ir::Strategy().schedule(name, 4);
    auto changed = change == 0 ? changing.start(next) : changing.change(next);
    if (!changed.ok())
      FAIL(changed.error().to_string());
    const int count = 1 + static_cast<int>(random() % 2);
    auto a = changing.steps(count), b = still.steps(count);
    if (!a.ok())
      FAIL(a.error().to_string());
    got.insert(got.end(), a->begin(), a->end());
    want.insert(want.end(), b->begin(), b->end());
    CHECK(difference(got, want) <= 1e-12);
  }
  auto a = changing.parameters(), b = still.parameters();
  if (!a.ok())
    FAIL(a.error().to_string());
  CHECK(difference(*a, *b) <= 1e-12);
}

} // namespace

TEST_CASE("random sequences of strategies leave the trajectory as it was") {
  const unsigned sequences = std::getenv("PIPER_LONG") ? 100 : 10;
  auto gpt = made(models::make_gpt(
      R"({"layers": 3, "d_model": 16, "heads": 2, "seq": 8, "batch": 8, "tied": true, "dtype": "float64"})"));
  auto mlp = made(models::make_mlp(
      R"({"layers": 5, "d_in": 6, "d_hidden": 10, "d_out": 4, "batch": 8, "skip": true, "dtype": "float64"})"));
  for (unsigned seed = 0; seed < sequences; ++seed) {
    check_sequence(gpt, seed);
    check_sequence(mlp, seed + 1000);
  }
}

TEST_CASE("the optimizer's moments and step count move along") {
  // With SGD and momentum, or AdamW's bias correction, a lost moment shows at once.
  auto model = made(models::make_mlp(
      R"({"layers": 4, "d_in": 6, "d_hidden": 10, "d_out": 4, "batch": 8, "dtype": "float64"})"));
  executor::OptimizerSpec sgd;
  sgd.kind = executor::OptimizerSpec::Kind::Sgd;
  sgd.momentum = 0.9;
  for (const auto& optimizer : {executor::OptimizerSpec{}, sgd}) {
    Cluster changing(model, 4, optimizer), still(model, 1, optimizer);
    REQUIRE(still.start(ir::Strategy().schedule("single", 4)).ok());
    REQUIRE(changing.start(ir::Strategy().schedule("zero3:4", 4)).ok());
    auto a = changing.steps(3), b = still.steps(3);
    REQUIRE(changing.change(ir::Strategy().schedule("1f1b:2", 4)).ok());
    a = changing.steps(3);
    b = still.steps(3);
    REQUIRE(a.ok());
    CHECK(difference(*a, *b) <= 1e-12);
  }
}
