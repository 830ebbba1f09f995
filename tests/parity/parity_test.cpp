// A strategy never changes what is learned: every strategy against one device, in float64, loss by
// loss and parameter by parameter.
//
// Which sums have one order, so that the comparison is bitwise: a pipeline of any shape, since each
// gradient adds up microbatch by microbatch in ascending order on one device, as on a single one.
// Where replicas or the holders of a tied parameter add up first what is theirs, the order differs,
// and so may the last bits: 1e-12 relative.
#include "examples/models/gpt.h"
#include "examples/models/mlp.h"
#include "examples/models/registry.h"
#include "tests/parity/outcome.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;

namespace {

std::shared_ptr<const Model> gpt(bool tied) {
  return made(models::make_gpt(fmt::format(
      R"({{"layers": 4, "d_model": 16, "heads": 2, "seq": 8, "batch": 24, "tied": {},
          "dtype": "float64", "sample_microbatches": 4}})",
      tied)));
}

std::shared_ptr<const Model> llama(bool tied) {
  return made(models::make_llama(fmt::format(
      R"({{"layers": 3, "d_model": 16, "heads": 4, "kv_heads": 2, "d_ff": 24, "seq": 8,
          "batch": 24, "tied": {}, "dtype": "float64", "sample_microbatches": 4}})",
      tied)));
}

std::shared_ptr<const Model> mlp(bool skip) {
  return made(models::make_mlp(fmt::format(
      R"({{"layers": 7, "d_in": 6, "d_hidden": 10, "d_out": 4, "batch": 24, "skip": {},
          "dtype": "float64"}})",
      skip)));
}

struct Subject {
  const char* name;
  std::shared_ptr<const Model> model;
  bool tied;
};

Outcome train(const std::shared_ptr<const Model>& model, const ir::Strategy& strategy,
              uint32_t devices, const executor::OptimizerSpec& optimizer = {}) {
  return learn(model, strategy, devices, optimizer, /*iterations=*/4);
}

ir::Strategy named(const std::string& expression, int64_t microbatches) {
  return ir::Strategy().schedule(expression, microbatches);
}

void check(const Outcome& got, const Outcome& want, bool bitwise) {
  check(got, want);
  if (bitwise) {
    CHECK(difference(got.losses, want.losses) == 0);
    CHECK(difference(got.parameters, want.parameters) == 0);
  }
}

} // namespace

TEST_CASE("every strategy learns what one device learns") {
  struct Entry {
    const char* expression;
    int replicas, devices;
  };
  const Entry strategies[] = {
      {"dp:2", 2, 2},
      {"dp:3", 3, 3},
      {"zero1:2", 2, 2},
      {"zero1:3", 3, 3},
      {"gpipe:2", 1, 2},
      {"1f1b:2", 1, 2},
      {"gpipe:4", 1, 4},
      {"1f1b:3", 1, 3},
      {"1f1b:4", 1, 4},
      {"dp:2x1f1b:2", 2, 4},
      {"dp:3x1f1b:2", 3, 6},
      {"zero1:2x1f1b:2", 2, 4},
      {"dp:2xgpipe:4", 2, 8},
      {"zero1:3xgpipe:2", 3, 6},
      {"zero2:2", 2, 2},
      {"zero3:2", 2, 2},
      {"zero3:3", 3, 3},
      {"zero3:2x1f1b:2", 2, 4},
      {"zero2:2xgpipe:2", 2, 4},
  };
  for (const Subject& subject :
       {Subject{"gpt", gpt(false), false}, Subject{"gpt tied", gpt(true), true},
        Subject{"mlp", mlp(false), false}, Subject{"mlp skip", mlp(true), false}})
    for (int64_t m : {1, 3, 8}) {
      std::map<int64_t, Outcome> single; // by microbatches of the whole batch
      for (const Entry& entry : strategies) {
        // As many microbatches on every replica; the rows of each are those of a single device
        // with m x replicas of them.
        const int64_t all = m * entry.replicas;
        if (24 % all != 0)
          continue;
        INFO(subject.name << ", " << entry.expression << ", " << m << " microbatches");
        if (!single.contains(all))
          single[all] = train(subject.model, named("single", all), 1);
        check(train(subject.model, named(entry.expression, all), entry.devices), single[all],
              entry.replicas == 1 && !subject.tied);
      }
    }
}

TEST_CASE("every schedule learns what one device learns") {
  struct Entry {
    const char* expression;
    uint32_t devices;
    bool one_order = true; ///< gradients add up on one device, in ascending order
  };
  const Entry schedules[] = {
      {"interleaved:2", 2},
      {"interleaved:2,v=3", 2},
      {"loopedbfs:2", 2},
      {"zbh1:3", 3},
      {"zbh2:3", 3},
      {"zb1p:2", 2},
      {"zbv:2", 2},
      {"zbv:3", 3},
      {"vhalf:2", 2},
      {"vmin:3", 3},
      {"dualpipe:2", 2, false},
      {"dualpipe:4", 4, false},
      {"dualpipev:2", 2},
      {"dualpipev:3", 3},
      {"dp:2xzbv:2", 4, false},
      {"dp:2xdualpipev:2", 4, false},
      {"zero1:2xdualpipe:2", 4, false},
  };
  for (const Subject& subject :
       {Subject{"gpt tied", gpt(true), true}, Subject{"mlp skip", mlp(true), false}})
    for (int64_t m : {4, 8}) {
      const Outcome single = train(subject.model, named("single", m), 1);
      for (const Entry& entry : schedules) {
        INFO(subject.name << ", " << entry.expression << ", " << m << " microbatches");
        check(train(subject.model, named(entry.expression, m), entry.devices), single,
              entry.one_order && !subject.tied);
      }
    }
}

TEST_CASE("a llama learns under every kind of strategy what it learns on one device") {
  struct Entry {
    const char* expression;
    uint32_t devices;
    bool one_order; ///< gradients add up on one device, in ascending order
  };
  const Entry strategies[] = {{"dp:2", 2, false},    {"zero1:3", 3, false},
                              {"zero3:2", 2, false}, {"zero3:2x1f1b:2", 4, false},
                              {"gpipe:2", 2, true},  {"1f1b:4", 4, true},
                              {"zbv:2", 2, true},    {"dp:2x1f1b:2", 4, false}};
  for (bool tied : {false, true}) {
    const auto model = llama(tied);
    const Outcome single = train(model, named("single", 6), 1);
    const Outcome four = train(model, named("single", 4), 1);
    for (const Entry& entry : strategies) {
      INFO(entry.expression << (tied ? ", tied" : ""));
      const bool six = !entry.one_order;
      check(train(model, named(entry.expression, six ? 6 : 4), entry.devices), six ? single : four,
            entry.one_order && !tied);
    }
    const ir::Strategy whole = ir::Strategy().split({}, 4).place({}, {0});
    // Its calls are small: fused into layers, into runs around the attention, or not at all.
    check(train(model, whole, 1), four, !tied);
    check(train(model, ir::Strategy(whole).fuse({{"layer", "*"}}), 1), four, !tied);
    check(train(model, ir::Strategy(whole).recompute({}).fuse({}), 1), four, !tied);
    check(train(model, ir::Strategy(whole).split_backward({}), 1), four, false);
    check(train(model, ir::Strategy(whole).split_backward({}).fuse({}), 1), four, !tied);
  }
}

TEST_CASE("uneven stages, and more stages than devices") {
  auto model = mlp(true);
  const Outcome single = train(model, named("single", 3), 1);
  using Layers = std::vector<int64_t>;
  const ir::Strategy uneven = ir::Strategy()
                                  .split({}, 3)
                                  .place({{"layer", Layers{0}}}, {0})
                                  .place({{"layer", Layers{1, 2, 3, 4, 5}}}, {1})
                                  .place({{"layer", Layers{6}}}, {2})
                                  .place({{"call", std::vector<std::string>{"out", "loss"}}}, {2});
  auto placed = train(model, uneven, 3);
  check(placed, single, true);

  ir::Strategy round_robin = ir::Strategy().split({}, 3);
  for (int layer = 0; layer < 7; ++layer)
    round_robin.place({{"layer", layer}}, {static_cast<ir::DeviceIndex>(layer % 2)});
  round_robin.place({{"call", std::vector<std::string>{"out", "loss"}}}, {1});
  check(train(model, round_robin, 2), single, true);
}

TEST_CASE("fused or not, overlapped or not, the same is learned") {
  auto model = mlp(true);
  const Outcome single = train(model, named("single", 4), 1);
  check(train(model, ir::Strategy().split({}, 4).place({}, {0}), 1), single, true);
  check(train(model,
              ir::Strategy()
                  .split({}, 4)
                  .place({}, {0})
                  .fuse({{"PASS", "F"}})
                  .fuse({{"PASS", "B"}, {"layer", 3}}),
              1),
        single, true);
  ir::Strategy overlapped = ir::Strategy().split({}, 4).place({}, {0});
  for (int m = 0; m < 3; ++m)
    overlapped.overlap({{"PASS", "B"}, {"MB", m}}, {{"PASS", "F"}, {"MB", m + 1}});
  overlapped.order({{{{"PASS", "B"}, {"MB", 0}}},
                    {{{"PASS", "B"}, {"MB", 1}}},
                    {{{"PASS", "B"}, {"MB", 2}}},
                    {{{"PASS", "B"}, {"MB", 3}}}});
  check(train(model, overlapped, 1), single, true);
}

TEST_CASE("sharded gradients and parameters") {
  using ir::Strategy;
  const auto sharded = [](bool grads, bool params) {
    return ir::Replicate{.filter = {},
                         .devices = {0, 1, 2},
                         .shard_grads = grads,
                         .shard_params = params,
                         .bucket_mb = 0.001};
  };
  for (const auto& model : {gpt(false), gpt(true), mlp(true)}) {
    const Outcome single = train(model, named("single", 6), 1);
    for (const auto& [grads, params] :
         {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
      INFO("gradients " << grads << ", parameters " << params);
      const Strategy whole = Strategy().split({}, 2).replicate(sharded(grads, params));
      check(train(model, whole, 3), single, false);
      check(train(model, Strategy(whole).fuse({{"PASS", "F"}}).prefetch({}, 0), 3), single, false);
      check(train(model, Strategy(whole).split_backward({}).prefetch({}, 3), 3), single, false);
    }
  }
  executor::OptimizerSpec clipped;
  clipped.clip_norm = 0.01;
  auto model = gpt(false);
  check(train(model, Strategy().split({}, 2).replicate(sharded(true, true)), 3, clipped),
        train(model, named("single", 6), 1, clipped), false);
}

TEST_CASE("activations computed again") {
  using ir::Strategy;
  using Layers = std::vector<int64_t>;
  for (const auto& model : {gpt(false), gpt(true), mlp(true)}) {
    const Outcome single = train(model, named("single", 4), 1);
    const Strategy all = Strategy().split({}, 4).place({}, {0}).recompute({});
    check(train(model, all, 1), single, true);
    check(train(model, Strategy(all).fuse({}), 1), single, true);
    check(train(model, Strategy(all).split_backward({}).fuse({{"PASS", "BI"}}), 1), single, false);
    const Strategy some =
        Strategy().split({}, 4).place({}, {0}).recompute({{"layer", Layers{1, 2}}});
    check(train(model, some, 1), single, true);
    check(train(model, Strategy(some).fuse({{"PASS", "F"}}).fuse({{"layer", 1}, {"PASS", "B"}}), 1),
          single, true);
    check(train(model, Strategy(named("1f1b:2", 4)).recompute({}), 2), single, false);
    const ir::Replicate sharded{.filter = {}, .devices = {0, 1}, .shard_params = true};
    check(train(model, Strategy().split({}, 2).replicate(sharded).recompute({}), 2), single, false);
  }
}

TEST_CASE("backward for inputs and for weights apart") {
  using ir::Strategy;
  for (const auto& [model, tied] :
       {std::pair(gpt(false), false), std::pair(gpt(true), true), std::pair(mlp(true), false)}) {
    const Outcome single = train(model, named("single", 4), 1);
    const Strategy apart = Strategy().split({}, 4).split_backward({}).place({}, {0});
    // Of a tied weight the later use's gradients may all come first.
    check(train(model, apart, 1), single, !tied);
    check(train(model, Strategy(apart).fuse({}), 1), single, !tied);
    check(train(model, Strategy(apart).fuse({{"PASS", "F"}}).fuse({{"PASS", "BW"}}), 1), single,
          !tied);
    // Part of the model; the weights' gradients at the very end.
    Strategy late = Strategy().split({}, 4).place({}, {0}).split_backward({{"layer", 1}});
    late.order({{{{"PASS", "B"}}, {{"PASS", "BI"}}}, {{{"PASS", "BW"}}}});
    check(train(model, late, 1), single, !tied);
    Strategy replicated = Strategy().split({}, 2).replicate({}, {0, 1}).split_backward({}).fuse({});
    check(train(model, replicated, 2), single, false);
  }
}

TEST_CASE("small buckets and fused buckets reduce to the same") {
  auto model = gpt(false);
  const Outcome single = train(model, named("single", 2), 1);
  const ir::Replicate small{.filter = {}, .devices = {0, 1}, .bucket_mb = 0.001};
  check(train(model, ir::Strategy().replicate(small), 2), single, false);
  check(train(model, ir::Strategy().replicate(small).fuse({{"PASS", "REDUCE"}, {"layer", "*"}}), 2),
        single, false);
}

TEST_CASE("clipping and SGD know no strategy either") {
  auto model = gpt(true);
  executor::OptimizerSpec clipped;
  clipped.clip_norm = 0.01;
  executor::OptimizerSpec sgd;
  sgd.kind = executor::OptimizerSpec::Kind::Sgd;
  sgd.lr = 0.1;
  sgd.momentum = 0.9;
  sgd.weight_decay = 0.01;
  executor::OptimizerSpec scheduled;
  scheduled.warmup = 2;
  scheduled.decay = 4;
  for (const auto& optimizer : {clipped, sgd, scheduled}) {
    const Outcome single = train(model, named("single", 4), 1, optimizer);
    for (const char* expression : {"dp:2", "zero1:2", "1f1b:2", "zero1:2x1f1b:2"}) {
      INFO(expression);
      check(train(model, named(expression, 4),
                  std::string(expression).find('x') == std::string::npos ? 2 : 4, optimizer),
            single, false);
    }
  }
}

TEST_CASE("the initial weights don't depend on the strategy") {
  auto model = gpt(false);
  auto initial = [&](const char* expression, uint32_t devices) {
    Cluster cluster(model, devices);
    REQUIRE(cluster.start(named(expression, 2)).ok());
    auto parameters = cluster.parameters();
    REQUIRE(parameters.ok());
    return *std::move(parameters);
  };
  const auto single = initial("single", 1);
  CHECK(difference(initial("1f1b:4", 4), single) == 0);
  CHECK(difference(initial("zero1:2", 2), single) == 0);
}
