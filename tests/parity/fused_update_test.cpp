// Updates fused into the reductions of their buckets: what one device learns, in float64 to 1e-12.
#include "examples/models/registry.h"
#include "tests/parity/outcome.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

std::shared_ptr<const Model> gpt(bool tied) {
  return made(models::make_gpt(fmt::format(
      R"({{"layers": 2, "d_model": 16, "heads": 2, "seq": 8, "batch": 16, "tied": {},
          "dtype": "float64", "sample_microbatches": 8}})",
      tied)));
}

Strategy named(const std::string& expression) {
  return Strategy().schedule(expression, 8);
}

} // namespace

TEST_CASE("updates fused into reductions learn what one device learns") {
  struct Entry {
    const char* expression;
    uint32_t devices;
  };
  for (const auto& model : {gpt(false), gpt(true)}) {
    const Outcome single = learn(model, named("single"), 1);
    for (const Entry& entry :
         {Entry{"single", 1}, Entry{"dp:2", 2}, Entry{"zero1:2", 2}, Entry{"zero2:2", 2},
          Entry{"zero3:2", 2}, Entry{"zero3:4,within=2", 4}, Entry{"1f1b:2", 2},
          Entry{"zero1:2x1f1b:2", 4}, Entry{"zero3:2xzbv:2", 4}}) {
      INFO(entry.expression);
      check(learn(model, named(entry.expression).fuse({}, true), entry.devices), single);
    }
    for (const bool grads : {false, true}) {
      const Strategy buckets = Strategy().split({}, 4).replicate(
          Replicate{.devices = {0, 1}, .shard_grads = grads, .bucket_mb = 1e-9});
      check(learn(model, Strategy(buckets).fuse({{"PASS", "REDUCE"}}, true), 2), single);
      check(learn(model, Strategy(buckets).split_backward({}).fuse({{"layer", 1}}, true), 2),
            single);
      check(learn(model, Strategy(buckets).recompute({}).fuse({}, true), 2), single);
    }
  }
}

TEST_CASE("updates fused into reductions come and go while it trains") {
  const auto model = gpt(true);
  Cluster still(model, 1), moving(model, 4);
  REQUIRE(still.start(named("single")).ok());
  REQUIRE(moving.start(named("dp:2").fuse({}, true)).ok());
  std::vector<double> want, got;
  for (const Strategy& next : {named("zero3:4,within=2").fuse({}, true), named("zero1:2"),
                               named("1f1b:2").fuse({}, true), named("dp:4")}) {
    want.push_back(still.step().value_or_throw());
    got.push_back(moving.step().value_or_throw());
    moving.change(next).value_or_throw();
  }
  CHECK(difference(got, want) <= 1e-12);
  CHECK(difference(moving.parameters().value_or_throw(), still.parameters().value_or_throw()) <=
        1e-12);
}
