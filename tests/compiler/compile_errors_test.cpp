// Bad input, each with the message that a person gets.
#include "tests/compiler/models.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;
using Catch::Matchers::Contains;

namespace {

/// What the compiler says of a strategy for the skip model (12 rows, layers 0 to 3).
Error error_of(const std::string& json, uint32_t devices = 4) {
  auto strategy = ir::Strategy::parse(json, "bad.json");
  if (!strategy.ok())
    return strategy.error();
  auto compiled =
      compiler::compile(load_model("skip"), *strategy, {.devices = devices, .verify_passes = true});
  REQUIRE_FALSE(compiled.ok());
  CHECK(compiled.error().kind == ErrorKind::User);
  CHECK_FALSE(compiled.error().hint.empty());
  return compiled.error();
}

constexpr const char* kPlaceAll = R"({"op": "place", "filter": {}, "devices": [0]})";

} // namespace

TEST_CASE("an unknown tag names the known ones") {
  const Error error = error_of(R"([{"op": "place", "filter": {"stage": 0}, "devices": [0]}])");
  CHECK_THAT(error.message, Contains("unknown tag 'stage'"));
  CHECK_THAT(error.where, Contains("directive 0 (place)") && Contains("bad.json:1"));
  CHECK_THAT(error.hint, Contains("layer"));
}

TEST_CASE("a filter that matches nothing") {
  Error error = error_of(R"([{"op": "place", "filter": {"layer": 7}, "devices": [0]}])");
  CHECK_THAT(error.message, Contains("matches nothing: no layer is 7"));
  CHECK_THAT(error.hint, Contains("0, 1, 2, 3"));
  error = error_of(std::string("[") + kPlaceAll +
                   R"(, {"op": "fuse", "filter": {"layer": 0, "call": "d"}}])");
  CHECK_THAT(error.message, Contains("matches nothing"));
}

TEST_CASE("microbatches without a split") {
  const Error error = error_of(std::string("[") + kPlaceAll +
                               R"(, {"op": "order", "filters": [[{"MB": 0}], [{"MB": 1}]]}])");
  CHECK_THAT(error.message, Contains("no split makes any"));
  CHECK_THAT(error.hint, Contains("num_microbatches"));
}

TEST_CASE("a batch that does not divide") {
  Error error =
      error_of(R"([{"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 5}])");
  CHECK_THAT(error.message, Contains("batch of 12 rows is not divisible into 5 microbatches"));
  error = error_of(R"([{"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 4},
                       {"op": "replicate", "filter": {}, "devices": [0, 1]}])");
  CHECK_THAT(error.message, Contains("4 microbatches x 2 replicas"));
  CHECK_THAT(error.hint, Contains("multiple of 8"));
}

TEST_CASE("splits that cannot be") {
  const std::string split =
      R"({"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2})";
  CHECK_THAT(error_of("[" + split + "," + split + "]").message, Contains("split twice"));
  CHECK_THAT(
      error_of(
          R"([{"op": "split", "filter": {"layer": 0}, "dim_name": "MB", "num_microbatches": 2}])")
          .message,
      Contains("matches 1 of 5 calls"));
}

TEST_CASE("a device out of range, twice, or none") {
  CHECK_THAT(error_of(R"([{"op": "place", "filter": {}, "devices": [9]}])").message,
             Contains("device 9 is out of range"));
  CHECK_THAT(error_of(R"([{"op": "place", "filter": {}, "devices": [9]}])").hint,
             Contains("0 to 3"));
  CHECK_THAT(error_of(R"([{"op": "replicate", "filter": {}, "devices": [1, 1]}])").message,
             Contains("named twice"));
}

TEST_CASE("two placements of one call") {
  const Error error = error_of(R"([{"op": "place", "filter": {}, "devices": [0]},
                                   {"op": "place", "filter": {"layer": 2}, "devices": [1]}])");
  CHECK_THAT(error.message,
             Contains("'c' is placed on [1] here and on [0] by directive 0 (place)"));
  CHECK_THAT(error.where, Contains("directive 1 (place)") && Contains("bad.json:2"));
}

TEST_CASE("several devices without a word on how they share") {
  const Error error = error_of(R"([{"op": "place", "filter": {}, "devices": [0, 1]}])");
  CHECK_THAT(error.message, Contains("placed on 2 devices, but nothing says how"));
  CHECK_THAT(error.hint, Contains("replicate"));
}

TEST_CASE("a parameter that nothing places") {
  const Error error =
      error_of(R"([{"op": "place", "filter": {"layer": [0, 1, 2]}, "devices": [0]}])");
  CHECK_THAT(error.message, Contains("no directive places d, loss") &&
                                Contains("parameter d.weight would be held nowhere"));
}

TEST_CASE("a pass placed apart, or a microbatch nowhere") {
  CHECK_THAT(error_of(R"([{"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2},
                          {"op": "place", "filter": {"MB": 1}, "devices": [0]}])")
                 .message,
             Contains("no directive places a of microbatch 0"));
  CHECK_THAT(error_of(R"([{"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2},
                          {"op": "place", "filter": {"MB": 1}, "devices": [0]},
                          {"op": "place", "filter": {}, "devices": [1]}])")
                 .message,
             Contains("'a' is placed on [1] here and on [0] by directive 1 (place)"));
  CHECK_THAT(error_of(R"([{"op": "place", "filter": {"PASS": "B"}, "devices": [0]}])").message,
             Contains("places only a part of a call"));
}

TEST_CASE("stages with different numbers of replicas") {
  const Error error =
      error_of(R"([{"op": "replicate", "filter": {"layer": [0, 1]}, "devices": [0, 1]},
                   {"op": "place", "filter": {"layer": [2, 3]}, "devices": [2]}])");
  CHECK_THAT(error.message, Contains("2 and 1 replicas"));
}

TEST_CASE("sub-groups that shard nothing, or do not divide the replicas") {
  const auto within = [](const std::string& rest) {
    return error_of(R"([{"op": "replicate", "filter": {}, "devices": [0, 1, 2, 3], )" + rest +
                    "}]");
  };
  Error error = within(R"("shard_within": 2)");
  CHECK(error.message == "shard_within is given, but nothing is sharded");
  CHECK_THAT(error.where, Contains("directive 0 (replicate), bad.json:1"));
  CHECK_THAT(error.hint, Contains("shard_optimizer (ZeRO-1)"));
  CHECK(within(R"("shard_params": true, "shard_within": 1)").message ==
        "sub-groups of 1 replica shard nothing");
  error = within(R"("shard_grads": true, "shard_within": 3)");
  CHECK(error.message == "4 replicas do not make sub-groups of 3");
  CHECK_THAT(error.hint, Contains("divides 4"));
  // Each two of six replicas share the experts: a sub-group of three has some once, some twice.
  auto model = std::make_shared<ir::ModelSpec>(*load_model("sharded"));
  model->batch = 12;
  const auto strategy = ir::Strategy()
                            .replicate({.filter = {},
                                        .devices = {0, 1, 2, 3, 4, 5},
                                        .shard_optimizer = true,
                                        .shard_within = 3})
                            .shard({{"call", "experts"}}, {0, 1, 2, 3, 4, 5}, 2);
  const auto compiled = compiler::compile(std::move(model), strategy, {});
  REQUIRE_FALSE(compiled.ok());
  CHECK_THAT(compiled.error().message,
             Contains("sub-groups of 3 replicas do not hold all experts"));
  CHECK_THAT(compiled.error().hint, Contains("that 2 divides"));
}

TEST_CASE("updates that cannot be fused into a reduction") {
  const auto fused = [](const std::string& filter) {
    return error_of(R"([{"op": "split", "filter": {}, "num_microbatches": 2},
      {"op": "replicate", "filter": {}, "devices": [0, 1], "bucket_mb": 0.0001},
      {"op": "fuse", "update": true, "filter": )" +
                    filter + "}]");
  };
  Error error = fused(R"({"MB": 1})");
  CHECK(error.message ==
        "an update is fused into the reduction of its bucket, which has no MB of its own");
  CHECK_THAT(error.where, Contains("directive 2 (fuse), bad.json:3"));
  CHECK_THAT(fused(R"({"PASS": "B"})").message, Contains("which has no PASS of its own"));
  CHECK(error_of(R"([{"op": "replicate", "filter": {}, "devices": [0, 1]},
                     {"op": "fuse", "update": true, "filter": {"layer": 1}}])")
            .message == "no bucket has all of its calls among those that match");
  // A parameter that is read by a call which no gradient reaches.
  auto model = std::make_shared<ir::ModelSpec>(*load_model("skip"));
  const ir::ParamId shared = model->calls[0].params.front();
  ir::ModelCall probe = model->calls[0];
  probe.name = "probe";
  probe.outputs = {ir::ValueId(model->values.size())};
  model->values.push_back(model->values[model->calls[0].outputs[0].value]);
  model->values.back().name = "probe";
  model->values.back().producer = ir::CallId(model->calls.size());
  model->calls.push_back(probe);
  REQUIRE(probe.params.front() == shared);
  const auto compiled = compiler::compile(model, ir::Strategy().place({}, {0}).fuse({}, true), {});
  REQUIRE_FALSE(compiled.ok());
  CHECK_THAT(compiled.error().message,
             Contains("'probe' reads bucket") && Contains("but no gradient reaches it"));
  CHECK_THAT(compiled.error().where, Contains("directive 1 (fuse)"));
}

TEST_CASE("orders that contradict each other, or the data flow") {
  const std::string start =
      std::string("[") + kPlaceAll +
      R"(, {"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2},)";
  Error error = error_of(start + R"(
    {"op": "order", "filters": [[{"PASS": "F", "MB": 0}], [{"PASS": "F", "MB": 1}]]},
    {"op": "order", "filters": [[{"PASS": "F", "MB": 1}], [{"PASS": "F", "MB": 0}]]}])");
  CHECK_THAT(error.to_string(), Contains("cycle"));
  CHECK_THAT(error.to_string(), Contains("directive 2 (order)") && Contains("directive 3 (order)"));
  error = error_of(
      start +
      R"({"op": "order", "filters": [[{"PASS": "B", "MB": 0}], [{"PASS": "F", "MB": 0}]]}])");
  CHECK_THAT(error.to_string(), Contains("cycle") && Contains("directive 2 (order)"));
}

TEST_CASE("a fuse across an order that cuts it") {
  const Error error = error_of(std::string("[") + kPlaceAll + R"(,
    {"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2},
    {"op": "order", "filters": [[{"PASS": "F", "MB": 0, "layer": 0}], [{"PASS": "F", "MB": 1, "layer": [1, 2]}], [{"PASS": "F", "MB": 0, "layer": 1}]]},
    {"op": "fuse", "filter": {"PASS": "F"}}])");
  CHECK_THAT(error.to_string(), Contains("cycle") && Contains("directive 2 (order)"));
}

TEST_CASE("overlapped sides that would race") {
  const std::string start = std::string("[") + kPlaceAll + R"(,
    {"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": 2},)";
  CHECK_THAT(
      error_of(start +
               R"({"op": "overlap", "a": {"PASS": "B", "MB": 0}, "b": {"PASS": "B", "MB": 1}}])")
          .message,
      Contains("would add to the gradient of a.weight at the same time"));
  CHECK_THAT(error_of(start + R"({"op": "overlap", "a": {"PASS": "F"}, "b": {"MB": 1}}])").message,
             Contains("is on both sides"));
}

TEST_CASE("tags that every node has already") {
  CHECK_THAT(error_of(std::string("[") + kPlaceAll +
                      R"(, {"op": "tag", "filter": {}, "name": "PASS", "index": 0}])")
                 .message,
             Contains("'PASS' is a tag that every node has already"));
}

TEST_CASE("schedules that cannot be built") {
  auto with = [](const std::string& name, int microbatches) {
    return error_of(R"([{"op": "schedule", "name": ")" + name + R"(", "microbatches": )" +
                    std::to_string(microbatches) + "}]");
  };
  CHECK_THAT(with("zigzag:2", 4).message, Contains("unknown strategy 'zigzag'"));
  CHECK_THAT(with("zigzag:2", 4).hint, Contains("1f1b:P"));
  CHECK_THAT(with("dp:0", 4).message, Contains("count of at least 1"));
  CHECK_THAT(with("dp:2xdp:2", 4).message, Contains("two parts of one kind"));
  CHECK_THAT(with("gpipe:9", 4).message, Contains("9 stages need at least as many calls"));
  CHECK_THAT(with("dp:2", 3).message, Contains("3 microbatches of the global batch do not divide"));
  CHECK_THAT(with("dp:5", 5).message, Contains("not divisible over 5 replicas"));
  CHECK_THAT(with("1f1b:2", 5).message, Contains("not divisible into 5 microbatches"));
  CHECK_THAT(with("gpipe:2,v=2", 4).message, Contains("gpipe has no option 'v'"));
  CHECK_THAT(with("interleaved:2,v", 4).message, Contains("the option 'v' of 'interleaved'"));
  CHECK_THAT(with("interleaved:2,v=0", 4).hint, Contains("interleaved:2,v=2"));
  CHECK_THAT(with("interleaved:2,v=1", 4).hint, Contains("use 2 or more"));
  CHECK_THAT(with("dp:2,v=2", 4).message, Contains("dp has no option 'v'"));
  CHECK_THAT(with("dp:2,within=2", 4).message, Contains("dp has no option 'within'"));
  CHECK_THAT(with("dp:2,within=2", 4).hint, Contains("zero3:4,within=2"));
  CHECK_THAT(with("zero1:4,within=3", 4).message, Contains("do not make sub-groups of 3"));
  CHECK_THAT(with("dualpipe:3", 6).hint, Contains("use 2 or 4"));
  CHECK_THAT(with("table", 4).message, Contains("the schedule 'table' has no table"));
}

TEST_CASE("tables that are no schedules") {
  auto with = [](const std::string& name, const std::string& table, int microbatches = 0) {
    return error_of(R"([{"op": "schedule", "name": ")" + name + R"(", "microbatches": )" +
                    std::to_string(microbatches) + R"(, "table": )" + table + "}]");
  };
  CHECK_THAT(with("1f1b:2", R"(["0F0,0B0"])").message, Contains("'1f1b:2' does not name it"));
  CHECK_THAT(with("table", R"(["0F0,oops"])").where, Contains("row 1, column 2"));
  CHECK_THAT(with("table", R"(["0F0"])").message, Contains("no backward (B) of microbatch 0"));
  CHECK_THAT(with("table", R"(["0B0,0F0"])").message, Contains("0B0 can never start"));
  CHECK_THAT(with("table", R"(["0F0,0B0"])", 3).message, Contains("1 microbatches, not 3"));
  CHECK_THAT(with("table", R"("0F0,0B0")").message, Contains("a list of strings"));
}

TEST_CASE("an unknown pass names the passes") {
  auto compiled =
      compiler::compile(chain(2, 4), ir::Strategy().place({}, {0}), {.stop_after = "optimise"});
  REQUIRE_FALSE(compiled.ok());
  CHECK_THAT(compiled.error().message, Contains("there is no pass 'optimise'"));
  CHECK_THAT(compiled.error().hint, Contains("lower_model") && Contains("assign_streams"));
}

TEST_CASE("calls that cannot be sharded as a directive says") {
  const auto sharded_error = [](const std::string& directives) {
    auto strategy = ir::Strategy::parse("[" + directives + "]", "bad.json");
    REQUIRE(strategy.ok());
    auto compiled = compiler::compile(load_model("sharded"), *strategy, {.devices = 4});
    REQUIRE_FALSE(compiled.ok());
    CHECK(compiled.error().kind == ErrorKind::User);
    CHECK_FALSE(compiled.error().hint.empty());
    CHECK_THAT(compiled.error().where, Contains("bad.json:1"));
    return compiled.error().message;
  };
  const std::string replicate = R"({"op": "replicate", "filter": {}, "devices": [0, 1]}, )";
  CHECK(sharded_error(replicate +
                      R"({"op": "shard", "filter": {"call": "sum"}, "devices": [0, 1]})") ==
        "'sum' has no experts to be spread over devices");
  CHECK(sharded_error(R"({"op": "shard_tensor", "filter": {"call": "sum"}, "devices": [0, 1]})") ==
        "none of the calls that are sharded can be cut");
  CHECK(sharded_error(R"({"op": "shard_tensor", "filter": {}, "devices": [0, 1, 2]})") ==
        "'attn' makes 4 pieces, which 3 devices cannot share evenly");
  CHECK(sharded_error(R"({"op": "shard_tensor", "filter": {}, "devices": [0, 1, 2], "ways": 2})") ==
        "3 devices do not make blocks of 2");
  CHECK(sharded_error(
            R"({"op": "shard_tensor", "filter": {}, "devices": [0, 1, 2, 3], "ways": 2})") ==
        "'norm' is placed on 4 devices, but nothing says how they share it");
  CHECK(sharded_error(R"({"op": "shard_tensor", "filter": {"layer": 0}, "devices": [0, 1]}, )"
                      R"({"op": "replicate", "filter": {"layer": 1}, "devices": [2, 3]})") ==
        "'norm' runs on [0, 1] and 'route' on [2, 3]: they have 1 and 2 replicas");
  CHECK(sharded_error(R"({"op": "shard_tensor", "filter": {"layer": 0}, "devices": [0, 1]}, )"
                      R"({"op": "place", "filter": {"layer": 1}, "devices": [2]})") ==
        "'norm' runs on [0, 1] and 'route' on [2]: 2 and 1 devices share a row");
  CHECK(sharded_error(replicate +
                      R"({"op": "shard", "filter": {"call": "experts"}, "devices": [0, 1]}, )"
                      R"({"op": "shard", "filter": {"call": "experts"}, "devices": [0, 1]})") ==
        "'experts' is sharded here and by directive 1 (shard), bad.json:1");
  const std::string four = R"("devices": [0, 1, 2, 3])";
  CHECK(sharded_error(R"({"op": "shard_tensor", "filter": {}, )" + four + "}, " +
                      R"({"op": "shard", "filter": {"call": "experts"}, "ways": 2, )" + four +
                      "}") ==
        "'experts' has its experts on 2 devices in a row, of which 4 share rows by directive 0 "
        "(shard_tensor), bad.json:1");
  CHECK(
      sharded_error(R"({"op": "shard_tensor", "filter": {"call": ["norm", "attn", "sum", "route",)"
                    R"( "combine", "loss"]}, "devices": [0, 1]}, )"
                    R"({"op": "shard", "filter": {"call": "experts"}, "devices": [0, 1]})") ==
      "'norm' runs on [0, 1] and 'experts' on [0, 1]: they have 1 and 2 replicas");
}

TEST_CASE("mirrors need devices that have no copy yet") {
  const auto mirrored = [](const std::string& expression, int64_t copies) {
    return compiler::compile(chain(4, 8), ir::Strategy().schedule(expression, 4).mirror({}, copies),
                             {});
  };
  for (const auto& [expression, devices] :
       {std::pair("single", 1), {"zero1:2", 2}, {"1f1b:4", 4}}) {
    CAPTURE(expression);
    if (devices > 1)
      CHECK(mirrored(expression, devices - 1).ok());
    const auto refused = mirrored(expression, devices);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().kind == ErrorKind::User);
    CHECK_THAT(refused.error().where, Contains("(mirror)"));
    CHECK_THAT(
        refused.error().message,
        Contains(fmt::format("need {} devices, the strategy uses {}", devices + 1, devices)));
    CHECK(refused.error().hint == (devices > 1 ? fmt::format("ask for {} or less, or use more "
                                                             "devices",
                                                             devices - 1)
                                               : "leave it out, or use more devices"));
  }
  // What replicas, or sub-groups of them, have anyway needs no mirror.
  for (const char* expression : {"dp:2", "zero3:4,within=2"}) {
    CAPTURE(expression);
    const auto replicas = mirrored(expression, 5);
    REQUIRE(replicas.ok());
    for (const ir::Bucket& bucket : replicas->plans.buckets)
      CHECK(bucket.mirrors.empty());
  }
}

TEST_CASE("a bucket that is mirrored is not updated before the commit") {
  const auto fused = [](const ir::Filter& fuse, const ir::Filter& mirror) {
    return compiler::compile(
        chain(4, 8), ir::Strategy().schedule("1f1b:2", 4).fuse(fuse, true).mirror(mirror), {});
  };
  const auto refused = fused({}, {});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().kind == ErrorKind::User);
  CHECK_THAT(refused.error().where, Contains("(mirror)"));
  CHECK_THAT(refused.error().message,
             Contains("is fused into its reduction: it does not wait until its mirrors have the "
                      "gradients"));
  CHECK(refused.error().hint == "leave its calls out of the filter of one of the two");
  // Others may be.
  const auto compiled =
      fused({{"layer", std::vector<int64_t>{0, 1}}}, {{"layer", std::vector<int64_t>{2, 3}}});
  REQUIRE(compiled.ok());
  REQUIRE(compiled->plans.buckets.size() == 2);
  for (const ir::Bucket& bucket : compiled->plans.buckets)
    CHECK(bucket.fused_update == bucket.mirrors.empty());
}

TEST_CASE("products that make no sense") {
  const auto error_of_named = [](const std::string& expression, const std::string& model) {
    auto compiled = compiler::compile(load_model(model), ir::Strategy().schedule(expression), {});
    REQUIRE_FALSE(compiled.ok());
    return compiled.error().message;
  };
  CHECK(error_of_named("tp:2xep:3", "sharded") ==
        "in 'tp:2xep:3' 3 devices in a row share the experts, and each 2 the rows");
  CHECK_THAT(error_of_named("ep:2", "skip"), Contains("shares experts, but the model has none"));
  CHECK_THAT(error_of_named("tp:2xsp:2", "sharded"), Contains("two parts of one kind"));
}

TEST_CASE("a parameter has one layout on all devices that hold it") {
  const auto compiled = compiler::compile(load_model("sharded"),
                                          ir::Strategy()
                                              .split({}, 2)
                                              .shard_tensor({{"MB", 0}}, {0, 1}, 2, true)
                                              .shard_tensor({{"MB", 1}}, {0, 1}, 2, false),
                                          {});
  REQUIRE_FALSE(compiled.ok());
  const Error& error = compiled.error();
  CHECK(error.message == "bucket layer=0 would be held tokens in blocks of 2 by some devices and "
                         "whole in blocks of 2 by others");
  CHECK_THAT(error.where, Contains("(shard_tensor)"));
  CHECK(error.hint == "shard all calls that share a parameter alike, or none");
}
