// Several devices: every layout trains what one device trains, and state moves between layouts.
#include "tests/executor/rig.h"

#include <torch/torch.h>

#include <catch2/catch.hpp>

namespace piper::test {
namespace {

using Layers = std::vector<int64_t>;

ir::Strategy pipeline(int64_t microbatches) {
  ir::Strategy s;
  return s.split({}, microbatches)
      .place({{"layer", Layers{0, 1}}}, {0})
      .place({{"layer", Layers{2, 3}}}, {1});
}
ir::Strategy replicated(int64_t microbatches, bool shard_optimizer) {
  ir::Strategy s;
  return s.split({}, microbatches)
      .place({}, {0, 1})
      .replicate({.devices = {0, 1}, .shard_optimizer = shard_optimizer});
}
ir::Strategy single(int64_t microbatches) {
  ir::Strategy s;
  return s.split({}, microbatches).place({}, {0});
}

} // namespace

TEST_CASE("layouts on two devices train what one device trains") {
  auto model = skip_model();
  auto options = fast_options();
  SECTION("plain") {}
  SECTION("clipped") {
    options.optimizer.clip_norm = 0.05;
  }
  Reference reference(*model, options);
  Rig stages(model, 2, options), replicas(model, 2, options), sharded(model, 2, options);
  stages.start(pipeline(3)).value_or_throw();
  replicas.start(replicated(3, false)).value_or_throw();
  sharded.start(replicated(3, true)).value_or_throw();
  for (int64_t i = 0; i < 4; ++i) {
    auto losses = reference.step(i, 3);
    double expected = (losses[0] + losses[1] + losses[2]) / 3;
    for (Rig* rig : {&stages, &replicas, &sharded})
      REQUIRE(Rig::mean_loss(rig->run(i).value_or_throw()) == Approx(expected).epsilon(1e-12));
  }
  // A pipeline adds in the order of one device; replicas add their halves.
  if (options.optimizer.clip_norm == 0)
    REQUIRE(difference(stages.params(), reference.params()) == 0);
  REQUIRE(difference(stages.params(), reference.params()) < 1e-12);
  REQUIRE(difference(replicas.params(), reference.params()) < 1e-12);
  REQUIRE(difference(sharded.params(), replicas.params()) == 0);
}

TEST_CASE("a sharded optimizer keeps half of the moments on each of two devices") {
  auto optimizer_bytes = [](Rig& rig) {
    for (const auto& holder : rig.device(1).holders())
      if (holder.what == "optimizer")
        return holder.bytes;
    return int64_t{0};
  };
  Rig whole(skip_model(), 2, fast_options()), half(skip_model(), 2, fast_options());
  whole.start(replicated(1, false)).value_or_throw();
  half.start(replicated(1, true)).value_or_throw();
  REQUIRE(optimizer_bytes(half) > 0);
  REQUIRE(optimizer_bytes(half) < optimizer_bytes(whole));
  // Beside the moments there is the step, one double a bucket.
  REQUIRE(2 * optimizer_bytes(half) - optimizer_bytes(whole) < 5 * 8);
}

TEST_CASE("a change of layout keeps every bit of the state") {
  auto model = skip_model();
  Rig rig(model, 2, fast_options());
  Reference reference(*model, fast_options());
  int64_t iteration = 0;
  auto train_and_compare = [&] {
    for (int i = 0; i < 2; ++i, ++iteration) {
      rig.run(iteration).value_or_throw();
      reference.step(iteration, 3);
    }
    REQUIRE(difference(rig.params(), reference.params()) < 1e-12);
  };
  rig.start(single(3)).value_or_throw();
  train_and_compare();
  for (const ir::Strategy& next : {pipeline(3), replicated(3, true), replicated(3, false),
                                   replicated(3, true), single(3), single(3)}) {
    auto before = rig.params();
    rig.change(next).value_or_throw();
    REQUIRE(difference(rig.params(), before) == 0);
    train_and_compare(); // moments and steps moved too
  }
  REQUIRE(rig.device(1).live_bytes() == 0); // it has nothing to do in the last layout
}

TEST_CASE("what was prepared can be dropped, and what runs is not disturbed") {
  auto model = skip_model();
  Rig rig(model, 2, fast_options());
  Reference reference(*model, fast_options());
  rig.start(single(1)).value_or_throw();
  rig.run(0).value_or_throw();
  int64_t live = rig.device(0).live_bytes();
  rig.prepare(pipeline(3), 7).value_or_throw();
  REQUIRE(rig.device(0).live_bytes() > live);
  REQUIRE(rig.device(1).live_bytes() > 0);
  rig.run(1).value_or_throw();
  for (uint32_t d : {0, 1})
    rig.device(d).discard(7);
  REQUIRE(rig.device(0).live_bytes() == live);
  REQUIRE(rig.device(1).live_bytes() == 0);
  rig.device(0).discard(0); // the committed one stays
  rig.run(2).value_or_throw();
  for (int64_t i = 0; i < 3; ++i)
    reference.step(i, 1);
  REQUIRE(difference(rig.params(), reference.params()) == 0);
}

TEST_CASE("handed-over tensors leave no memory on either account") {
  Rig rig(skip_model(), 2, fast_options());
  rig.start(pipeline(3)).value_or_throw();
  rig.run(0).value_or_throw();
  int64_t live0 = rig.device(0).live_bytes(), live1 = rig.device(1).live_bytes();
  auto results = rig.run(1).value_or_throw();
  REQUIRE(rig.device(0).live_bytes() == live0);
  REQUIRE(rig.device(1).live_bytes() == live1);
  REQUIRE(results[0].bytes_sent > 0);
  REQUIRE(results[0].losses.empty());
  REQUIRE(results[1].losses.size() == 3);
}

} // namespace piper::test
