// The simulator, against published schedules and against what can be worked out by hand.
#include "compiler/cost/collectives.h"
#include "compiler/simulate/ablate.h"
#include "compiler/simulate/fluid.h"
#include "compiler/simulate/simulate.h"
#include "compiler/simulate/timeline.h"
#include "ir/verify.h"
#include "tests/compiler/models.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::compiler;
using namespace piper::ir;
using namespace piper::test;

namespace {

/// A chain whose layers save a megabyte, whatever the rows; the loss saves nothing.
std::shared_ptr<const ModelSpec> saving_chain(int layers, int64_t batch,
                                              CallMemory memory = {.saved = {1'000'000, 0},
                                                                   .deferred = {1'000'000, 0}}) {
  ModelSpec model = *chain(layers, batch);
  for (ModelCall& call : model.calls)
    if (call.name != "loss")
      call.memory = memory;
  return std::make_shared<const ModelSpec>(std::move(model));
}

/// A chain's layers take 1 forward and 2 backward, whatever the rows; the loss takes nothing.
CostModel unit_costs(const ModelSpec& model) {
  CostModel costs;
  for (const ModelCall& call : model.calls) {
    CallCost cost;
    if (call.name != "loss")
      cost = {.forward = {1, 0},
              .backward = {2, 0},
              .backward_input = {1, 0},
              .backward_weight = {1, 0}};
    costs.calls.push_back(cost);
  }
  costs.moments = 0;
  return costs;
}

/// Devices joined by links that cost nothing.
Cluster free_links() {
  Cluster cluster;
  cluster.levels = {{.name = "all"}};
  return cluster;
}

Simulation simulate_ok(const PlanSet& plans, const ModelSpec& model, const CostModel& costs,
                       const Cluster& cluster, SimulateOptions options = {}) {
  auto simulation = simulate(plans, model, costs, cluster, options);
  if (!simulation.ok())
    FAIL(simulation.error().to_string());
  return *std::move(simulation);
}

Simulation simulate_schedule(const std::string& schedule, int layers, int64_t microbatches) {
  const auto model = saving_chain(layers, microbatches);
  const Compiled compiled = compile_ok(model, Strategy().schedule(schedule, microbatches));
  return simulate_ok(compiled.plans, *model, unit_costs(*model), free_links());
}

/// The most microbatches whose activations are alive at once, from the bytes that they take.
int64_t live_microbatches(const DeviceReport& device) {
  return std::llround(
      static_cast<double>(device.at_peak[static_cast<size_t>(Holding::Activations)]) / 1e6);
}

/// Data parallel over `ranks`, sharded as ZeRO of this stage (0: not at all), within sub-groups.
Strategy zero(int stage, int ranks, int64_t microbatches, int64_t within = 0) {
  Replicate replicate{.filter = {}};
  for (int rank = 0; rank < ranks; ++rank)
    replicate.devices.push_back(static_cast<DeviceIndex>(rank));
  replicate.shard_optimizer = stage >= 1;
  replicate.shard_grads = stage >= 2;
  replicate.shard_params = stage >= 3;
  replicate.shard_within = within;
  replicate.bucket_mb = 1e-9; // a layer each
  return Strategy().split({}, microbatches).replicate(replicate);
}

/// Every figure of every device, by device.
std::map<DeviceIndex, DeviceReport> by_device(const PlanSet& plans, const Simulation& full) {
  std::map<DeviceIndex, DeviceReport> reports;
  for (const DeviceReport& device : full.devices)
    reports[device.device] = device;
  CHECK(reports.size() == plans.devices.size());
  return reports;
}

/// Nodes of two processes of two devices; the devices of a node share an uplink.
Cluster small_nodes() {
  Cluster cluster;
  cluster.levels = {
      {.name = "process", .devices = 2, .latency = 1e-3, .bandwidth = 4e5},
      {.name = "node", .devices = 4, .latency = 2e-3, .bandwidth = 2e5, .uplink = 3e5},
      {.name = "cluster", .devices = 0, .latency = 5e-3, .bandwidth = 1e5},
  };
  cluster.message = 1e-4;
  return cluster;
}

void check_near(double a, double b) {
  CHECK(a == Approx(b).epsilon(1e-9).margin(1e-12));
}

/// Simulates each device, and one of each class; both must say the same. The number of classes.
size_t check_reduced(const PlanSet& plans, const ModelSpec& model, const CostModel& costs,
                     const Cluster& cluster) {
  const Simulation reduced = simulate_ok(plans, model, costs, cluster);
  const Simulation full = simulate_ok(plans, model, costs, cluster, {.every_device = true});
  check_near(reduced.makespan, full.makespan);
  const auto all = by_device(plans, full);
  uint32_t count = 0;
  for (const DeviceReport& device : reduced.devices) {
    const DeviceReport& same = all.at(device.device);
    CHECK(device.role == same.role);
    check_near(device.busy, same.busy);
    check_near(device.exposed, same.exposed);
    check_near(device.bubble, same.bubble);
    check_near(device.sent, same.sent);
    CHECK(device.peak == same.peak);
    CHECK(device.at_peak == same.at_peak);
    count += device.count;
  }
  CHECK(count == plans.devices.size());
  CHECK(reduced.devices.size() <= plans.devices.size());
  return reduced.devices.size();
}

} // namespace

TEST_CASE("GPipe and 1F1B have the published makespan, idle time and activations") {
  for (int p : {2, 4, 8, 16})
    for (int64_t m : {p, 2 * p, 4 * p + 1}) {
      CAPTURE(p, m);
      const Simulation gpipe = simulate_schedule("gpipe:" + std::to_string(p), p, m),
                       alternate = simulate_schedule("1f1b:" + std::to_string(p), p, m);
      for (const Simulation* each : {&gpipe, &alternate}) {
        CHECK(each->makespan == 3.0 * static_cast<double>(m + p - 1));
        CHECK(each->devices.size() == static_cast<size_t>(p));
        for (const DeviceReport& device : each->devices) {
          CHECK(device.busy == 3.0 * static_cast<double>(m));
          CHECK(device.bubble == 3.0 * (p - 1));
          CHECK(device.exposed == 0);
        }
      }
      for (int rank = 0; rank < p; ++rank) {
        CHECK(live_microbatches(gpipe.devices[rank]) == m);
        CHECK(live_microbatches(alternate.devices[rank]) == p - rank);
      }
    }
  const Simulation known = simulate_schedule("1f1b:4", 4, 8);
  CHECK(known.makespan == 33);
  CHECK(known.busiest().bubble == 9);
}

TEST_CASE("two stages over a link, by hand") {
  // h and d.h are 8 x f64 a row: 64 bytes. A message takes 0.1 + 64 / 640 = 0.2.
  //   device 0   F0 [0,1]  F1 [1,2]               B0 [4.4,6.4]   B1 [7.2,9.2]
  //   device 1   F0 [1.2,2.2]  B0 [2.2,4.2]  F1 [4.2,5.2]  B1 [5.2,7.2]
  // d.h of microbatch 0 leaves at 4.2, that of 1 at 7.2; the barrier ends the iteration: 2 phases
  // of 0.1 and 4 bytes each.
  const auto model = chain(2, 2);
  const Compiled compiled = compile_ok(model, Strategy().schedule("1f1b:2", 2));
  Cluster cluster;
  cluster.levels = {{.name = "link", .latency = 0.1, .bandwidth = 640}};
  const Simulation simulation = simulate_ok(compiled.plans, *model, unit_costs(*model), cluster);
  const double barrier = 2 * (0.1 + 4.0 / 640);
  check_near(simulation.makespan, 9.4 + barrier);
  const DeviceReport &first = simulation.devices[0], &second = simulation.devices[1];
  check_near(first.busy, 6);
  check_near(second.busy, 6);
  // Device 0 waits from 2 to 4.4, of which the message is under way for 0.2, and again from 6.4 to
  // 7.4; device 1 at the start, where the message is under way from 1 to 1.2.
  check_near(first.exposed, 0.4 + barrier);
  check_near(first.bubble, 3.0);
  check_near(second.exposed, 0.2 + barrier);
  check_near(second.bubble, 1 + 2.2);
  // Two messages, and half of the barrier's 8 bytes twice.
  check_near(first.sent, 128 + 8);
  REQUIRE(simulation.transfers.size() == 4);
  check_near(simulation.transfers[0].start, 1);
  check_near(simulation.transfers[0].end, 1.2);
}

TEST_CASE("the longest path of an iteration is what it would have taken without a link") {
  const auto model = chain(2, 2);
  const PlanSet plans = compile_ok(model, Strategy().schedule("1f1b:2", 2)).plans;
  Cluster cluster;
  cluster.levels = {{.name = "link", .latency = 0.1, .bandwidth = 640}};
  const Simulation slow = simulate_ok(plans, *model, unit_costs(*model), cluster);
  Timeline timeline = timeline_of(slow, plans, model.get());
  CHECK(timeline.end() > 9.4);
  check_near(*longest_path(timeline, plans, *model), 9); // 3 (m + p - 1)

  // A pass that took longer: F of the second microbatch on device 1, before its backward.
  const auto spans = by_instruction(timeline, plans);
  REQUIRE(spans.size() == 2);
  for (size_t i = 0; i < spans[1].size(); ++i) {
    CHECK(spans[1][i]->op == plans.plans[1].instructions[i].op);
    if (spans[1][i]->op == Opcode::Forward && spans[1][i]->microbatch == 1)
      const_cast<TimelineSpan*>(spans[1][i])->end += 5;
  }
  check_near(*longest_path(timeline, plans, *model), 14);
}

TEST_CASE("a fluid's flows share what they run on") {
  Fluid fluid;
  const uint32_t link = fluid.add_resource(10), card = fluid.add_resource(8);
  fluid.start(0, 0, {{link, 20, 1}}, 1); // alone: 2 s
  // From 1 on half of the link each: flow 1 has 10 left and ends at 3, flow 2 has gone for 2 s of
  // 2.4 by then and goes on at the pace of the card, 1.5 s for all of it.
  fluid.start(1, 0, {{link, 12, 1}, {card, 12, 1}}, 2);
  CHECK(*fluid.next_end() == Approx(3));
  CHECK(fluid.finish_next() == 1);
  CHECK(*fluid.next_end() == Approx(3.25));
  CHECK(fluid.finish_next() == 2);
  CHECK_FALSE(fluid.next_end());
  fluid.start(3, 0, {{card, 8, 1}}, 3);
  fluid.start(3, 0, {{card, 30, 3}}, 4); // three of four shares
  CHECK(*fluid.next_end() == Approx(7));
  CHECK(fluid.finish_next() == 3);
  CHECK(*fluid.next_end() == Approx(7.75));
  CHECK(fluid.finish_next() == 4);
  fluid.start(8, 2, {{card, 8, 1}}, 5); // no faster than it can go alone
  CHECK(*fluid.next_end() == Approx(10));
}

TEST_CASE("messages over a shared uplink share its bandwidth") {
  // Two replicas of two stages: both first stages send to the other node at once.
  const auto model = chain(2, 2);
  const Compiled compiled = compile_ok(model, Strategy().schedule("dp:2x1f1b:2", 2));
  CostModel costs = unit_costs(*model);
  Cluster cluster;
  cluster.levels = {{.name = "node", .devices = 2}, {.name = "cluster", .bandwidth = 640}};
  const double alone = simulate_ok(compiled.plans, *model, costs, cluster).transfers[0].end;
  check_near(alone, 1.1);
  cluster.levels[0].uplink = 640;
  const Simulation shared = simulate_ok(compiled.plans, *model, costs, cluster);
  CHECK(shared.devices.size() == 2); // a device of each stage is enough
  check_near(shared.transfers[0].end, 1.2);
  check_reduced(compiled.plans, *model, costs, cluster);
}

TEST_CASE("devices that share cores slow each other down") {
  const auto model = chain(4, 8);
  const Compiled compiled = compile_ok(model, Strategy().schedule("dp:4", 8));
  CostModel costs = unit_costs(*model);
  Cluster cluster = free_links();
  const double alone = simulate_ok(compiled.plans, *model, costs, cluster).makespan;
  CHECK(alone == 24); // 2 microbatches of 4 layers
  cluster.levels[0].cores = 2;
  CHECK(simulate_ok(compiled.plans, *model, costs, cluster).makespan == Approx(48));
  cluster.levels[0].cores = 4;
  CHECK(simulate_ok(compiled.plans, *model, costs, cluster).makespan == Approx(24));
}

TEST_CASE("devices of one address space add and copy what a collective moves, on their cores") {
  const auto model = chain(1, 2);
  const Compiled compiled = compile_ok(model, zero(0, 2, 1));
  CostModel costs;
  costs.calls.resize(model->calls.size());
  costs.copy = 1e-2;
  const double inputs = simulate_ok(compiled.plans, *model, costs, free_links()).makespan;
  costs.add = 1e-3;
  Cluster cluster;
  cluster.levels = {{.name = "process", .hands_over = true, .cores = 2}};
  double bytes = 8; // of the barrier
  for (const ModelParam& param : model->params)
    bytes += static_cast<double>(param.type.bytes(0));
  REQUIRE(bytes > 8);
  // The all-reduce and the barrier: half is added up, and half is copied.
  const double once = bytes / 2 * (costs.add + costs.copy);
  const Simulation simulation = simulate_ok(compiled.plans, *model, costs, cluster);
  check_near(simulation.makespan, inputs + once);
  check_near(simulation.devices[0].sent, bytes); // twice a half
  cluster.levels[0].cores = 1;
  check_near(simulate_ok(compiled.plans, *model, costs, cluster).makespan, 2 * (inputs + once));
  cluster.levels[0].cores = 0;
  check_near(simulate_ok(compiled.plans, *model, costs, cluster).makespan, inputs + once);
}

TEST_CASE("one device of each class says what all devices say") {
  for (const char* schedule :
       {"dp:4", "zero1:4", "1f1b:4", "dp:2x1f1b:4", "dp:4x1f1b:2", "dp:8x1f1b:2", "zero1:4xgpipe:3",
        "zero2", "zero3", "zero1:8,within=2", "zero3:8,within=4x1f1b:2"})
    for (Algorithm algorithm : {Algorithm::Direct, Algorithm::Ring, Algorithm::Halving,
                                Algorithm::Hierarchical, Algorithm::Auto}) {
      CAPTURE(schedule, to_string(algorithm));
      const auto model = chain(4, 32);
      const std::string name = schedule;
      const Compiled compiled =
          compile_ok(model, name == "zero2"   ? zero(2, 4, 4)
                            : name == "zero3" ? zero(3, 4, 4)
                                              : Strategy().schedule(name, 16));
      CostModel costs = declared_costs(*model, {.flops = 1e6, .bytes = 1e7});
      Cluster cluster = small_nodes();
      cluster.collectives = algorithm;
      const size_t classes = check_reduced(compiled.plans, *model, costs, cluster);
      if (algorithm == Algorithm::Direct && name == "dp:8x1f1b:2")
        CHECK(classes == 2);
      cluster.levels[1].cores = 3;
      check_reduced(compiled.plans, *model, costs, cluster);
      // A slow device makes its peers, and those of its unit, ones of their own.
      cluster.speeds[1] = 0.5;
      CHECK(check_reduced(compiled.plans, *model, costs, cluster) >=
            std::min<size_t>(compiled.plans.devices.size(), 2));
    }
}

TEST_CASE("a slow device slows the job") {
  const auto model = chain(4, 16);
  const Compiled compiled = compile_ok(model, Strategy().schedule("dp:4", 4));
  const CostModel costs = unit_costs(*model);
  Cluster cluster = free_links();
  CHECK(simulate_ok(compiled.plans, *model, costs, cluster).makespan == 12);
  cluster.speeds[2] = 0.25;
  const Simulation slow = simulate_ok(compiled.plans, *model, costs, cluster);
  CHECK(slow.makespan == 48);
  REQUIRE(slow.devices.size() == 2);
  CHECK(slow.devices[0].count == 3);
  CHECK(slow.devices[0].bubble == 36);
  CHECK(slow.busiest().device == 2);
}

TEST_CASE("ten thousand replicas take no longer than one") {
  const auto model = chain(8, 4 * 2048);
  const Compiled compiled = compile_ok(model, Strategy().schedule("dp:2048x1f1b:8", 4 * 2048));
  CHECK(compiled.plans.devices.size() == 16384);
  const Simulation simulation =
      simulate_ok(compiled.plans, *model, declared_costs(*model), declared_cluster());
  CHECK(simulation.devices.size() == 8);
  CHECK(simulation.devices[3].count == 2048);
}

TEST_CASE("the makespan is at least the critical path and the busiest device") {
  std::mt19937 random(7);
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 40; ++round) {
    const auto model = chain(4 + pick(5), 24);
    const char* schedules[] = {"single", "dp:2", "zero1:3", "gpipe:3", "1f1b:4", "dp:2x1f1b:3"};
    const Compiled compiled = compile_ok(model, Strategy().schedule(schedules[pick(6)], 12));
    CostModel costs;
    for (size_t c = 0; c < model->calls.size(); ++c) {
      const double forward = 1 + pick(5), backward = 1 + pick(9);
      costs.calls.push_back({.forward = {forward, 0}, .backward = {backward, 0}});
    }
    costs.instruction = 0.25 * pick(3);
    Cluster cluster = free_links();
    cluster.levels[0].latency = 0.1 * pick(4);
    cluster.levels[0].bandwidth = 100.0 * pick(4);
    const Simulation simulation = simulate_ok(compiled.plans, *model, costs, cluster);
    // Each microbatch goes forward through all calls and back.
    double path = 0;
    for (const CallCost& cost : costs.calls)
      path += cost.forward.fixed + cost.backward.fixed;
    CHECK(simulation.makespan >= path - 1e-9);
    for (const DeviceReport& device : simulation.devices) {
      CHECK(simulation.makespan >= device.busy - 1e-9);
      CHECK(device.exposed >= 0);
      CHECK(device.bubble >= -1e-9);
      check_near(device.busy + device.exposed + device.bubble, simulation.makespan);
    }
    // Nothing begins before what is before it on its stream is done.
    std::map<std::pair<uint32_t, uint32_t>, double> end;
    for (const Span& span : simulation.spans) {
      CHECK(span.start >= (end[{span.device, span.stream}]) - 1e-9);
      CHECK(span.end <= simulation.makespan + 1e-9);
      end[{span.device, span.stream}] = span.end;
    }
  }
}

TEST_CASE("without overlap an iteration takes as long as its work and its messages") {
  const auto model = chain(6, 8);
  const Compiled compiled = compile_ok(
      model, Strategy()
                 .split({}, 2)
                 .replicate(Replicate{.filter = {}, .devices = {0, 1}, .bucket_mb = 1e-9})
                 .fuse({{"PASS", "F"}}));
  const CostModel costs = unit_costs(*model);
  Cluster cluster;
  cluster.levels = {{.name = "link", .bandwidth = 512}}; // an all-reduce of 512 bytes takes 1
  const Simulation with = simulate_ok(compiled.plans, *model, costs, cluster);
  const PlanSet serial = without_overlap(compiled.plans);
  auto verified = verify(serial, *model);
  CHECK((verified.ok() ? "" : verified.error().to_string()) == "");
  const Simulation without = simulate_ok(serial, *model, costs, cluster);
  const double barrier = 8.0 / 512, compute = 2 * 6 * 3;
  // Each layer's reduction but the first layer's, which is the last, runs beside a backward.
  check_near(with.makespan, compute + 1 + barrier);
  check_near(without.makespan, compute + 6 + barrier);
  check_near(with.devices[0].exposed, 1 + barrier);
  check_near(without.devices[0].exposed, 6 + barrier);
  // A transfer that is waited for where it need not be: the control.
  CHECK(without.makespan > with.makespan);
}

TEST_CASE("an update that is fused into its reduction runs beside the backwards that follow") {
  const auto model = chain(4, 8);
  CostModel costs = unit_costs(*model);
  costs.update = 1.0 / 64; // a layer's takes 1
  Cluster cluster;
  cluster.levels = {{.name = "link", .bandwidth = 512}}; // an all-reduce of 512 bytes takes 1
  const auto simulated = [&](bool fused) {
    Strategy strategy =
        Strategy().replicate(Replicate{.filter = {}, .devices = {0, 1}, .bucket_mb = 1e-9});
    if (fused)
      strategy.fuse({}, true);
    const Compiled compiled = compile_ok(model, strategy);
    Simulation simulation = simulate_ok(compiled.plans, *model, costs, cluster, {.timeline = true});
    double first_update = 1e9, last_backward = 0;
    for (const Span& span : simulation.spans) {
      const Opcode op = compiled.plans.plans[0].instructions[span.instruction].op;
      if (op == Opcode::Update)
        first_update = std::min(first_update, span.start);
      if (op == Opcode::Backward)
        last_backward = std::max(last_backward, span.end);
    }
    return std::tuple(simulation.makespan, first_update, last_backward);
  };
  const auto [together, late_update, end] = simulated(false);
  const auto [apart, early_update, same_end] = simulated(true);
  CHECK(end == same_end);
  CHECK(late_update > end);
  CHECK(early_update < same_end);
  // After the last backward: a reduction, the barrier, and four updates; or that reduction and its
  // update, the others being done by then.
  const double barrier = 8.0 / 512;
  check_near(together, end + 1 + barrier + 4);
  check_near(apart, end + 1 + std::max(barrier, 1.0));
}

TEST_CASE("fusion and bucketing off") {
  const auto model = chain(6, 8);
  Strategy strategy = Strategy().schedule("dp:2", 4);
  const auto count = [&](const Result<Strategy>& changed, Opcode op) {
    REQUIRE(changed.ok());
    const Compiled compiled = compile_ok(model, *changed);
    return std::count_if(compiled.plans.plans[0].instructions.begin(),
                         compiled.plans.plans[0].instructions.end(),
                         [&](const Instruction& each) { return each.op == op; });
  };
  CHECK(count(strategy, Opcode::Forward) == 2);
  CHECK(count(without_fusion(*model, strategy), Opcode::Forward) == 2 * 7);
  CHECK(count(strategy, Opcode::AllReduce) == 1);
  CHECK(count(without_bucketing(*model, strategy), Opcode::AllReduce) == 6);
}

TEST_CASE("an ablation's prefetch distance stands for the strategy's own") {
  const auto model = chain(6, 4);
  Strategy strategy = Strategy().schedule("zero3:2", 2);
  strategy.prefetch({}, 2);
  const auto peak = [&](int64_t distance) {
    const auto changed = with_prefetch(*model, strategy, distance);
    REQUIRE(changed.ok());
    int64_t directives = 0;
    for (const Directive& directive : changed->directives)
      if (const auto* prefetch = std::get_if<Prefetch>(&directive.body)) {
        CHECK(prefetch->distance == distance);
        ++directives;
      }
    CHECK(directives == 1);
    const auto simulation = simulate(compile_ok(model, *changed).plans, *model,
                                     declared_costs(*model), declared_cluster());
    REQUIRE(simulation.ok());
    return simulation->devices.front().peak;
  };
  CHECK(peak(0) < peak(4)); // each window ahead holds one bucket more
}

TEST_CASE("messages of plans that move state are simulated too") {
  const auto model = chain(4, 8);
  const PlanSet from = compile_ok(model, Strategy().schedule("1f1b:2", 4)).plans;
  CompileOptions next;
  next.epoch = 1;
  const PlanSet to = compile_ok(model, Strategy().schedule("dp:2", 4), next).plans;
  const auto move = compile_migration(from, to, *model, {StateKind::Param});
  REQUIRE(move.ok());
  Cluster cluster;
  cluster.levels = {{.name = "link", .bandwidth = 1024}};
  CostModel costs = unit_costs(*model);
  const Simulation simulation = simulate_ok(*move, *model, costs, cluster);
  // Each device gets the other's two layers of 8 x 8 x f64: 1024 bytes, both ways at once.
  check_near(simulation.makespan, 1);
  check_near(simulation.devices[0].sent, 1024);
}

TEST_CASE("memory is what the state takes and what is alive") {
  const auto model = chain(4, 8);
  const CostModel costs = unit_costs(*model);
  const auto held = [](const Simulation& simulation, Holding holding) {
    return simulation.devices[0].at_peak[static_cast<size_t>(holding)];
  };
  CostModel adam = costs;
  adam.moments = 2;
  const int64_t params = 4 * 64 * 8;
  struct Case {
    int stage;
    int64_t param_ranks, grad_ranks, optimizer_ranks;
  };
  for (const Case& each :
       {Case{0, 1, 1, 1}, Case{1, 1, 1, 2}, Case{2, 1, 2, 2}, Case{3, 2, 2, 2}}) {
    CAPTURE(each.stage);
    const Compiled compiled = compile_ok(model, zero(each.stage, 2, 2));
    const Simulation simulation = simulate_ok(compiled.plans, *model, adam, free_links());
    const auto steps = static_cast<int64_t>(8 * compiled.plans.buckets.size());
    CHECK(held(simulation, Holding::Parameters) == params / each.param_ranks);
    CHECK(held(simulation, Holding::Gradients) == params / each.grad_ranks);
    CHECK(held(simulation, Holding::Optimizer) == 2 * params / each.optimizer_ranks + steps);
    CHECK((held(simulation, Holding::Whole) > 0) == (each.stage >= 2));
    CHECK(held(simulation, Holding::Whole) < 2 * params);
  }
  // A backward's scratch counts while it runs, beside what was there.
  const auto peak = [&](const CallMemory& memory) {
    const auto working = saving_chain(4, 8, memory);
    const Compiled compiled = compile_ok(working, Strategy().schedule("single", 4));
    return simulate_ok(compiled.plans, *working, costs, free_links()).peak();
  };
  CHECK(peak({.backward = {{{5'000'000, 0}}}}) - peak({.backward = {{{4'000'000, 0}}}}) ==
        1'000'000);
}

TEST_CASE("a rank sends what the formulas say") {
  // P bytes of parameters over n: ring all-reduce and ZeRO-1, 2: 2 P (n-1)/n; ZeRO-3: 3 P (n-1)/n.
  const auto model = chain(4, 16);
  const double params = 4 * 64 * 8, commit = 8 * 2;
  for (const auto& [stage, times] :
       {std::pair(0, 2), std::pair(1, 2), std::pair(2, 2), std::pair(3, 3)})
    for (int n : {2, 4}) {
      CAPTURE(stage, n);
      const Compiled compiled = compile_ok(model, zero(stage, n, 1));
      const Simulation simulation =
          simulate_ok(compiled.plans, *model, unit_costs(*model), free_links());
      for (const DeviceReport& device : simulation.devices)
        check_near(device.sent, (times * params + commit) * (n - 1) / n);
    }
  // Hybrid: the same within sub-groups of k, and an all-reduce of a shard across the n/k of them.
  for (const auto& [stage, times] : {std::pair(1, 2), std::pair(2, 2), std::pair(3, 3)})
    for (const auto& [n, k] : {std::pair(4, 2), std::pair(8, 2), std::pair(8, 4)}) {
      CAPTURE(stage, n, k);
      const Compiled compiled = compile_ok(model, zero(stage, n, 1, k));
      const Simulation simulation =
          simulate_ok(compiled.plans, *model, unit_costs(*model), free_links());
      const double groups = n / k;
      double padded = 0;
      for (const Bucket& bucket : compiled.plans.buckets)
        padded += static_cast<double>(bucket.numel * size_of(bucket.dtype));
      for (const DeviceReport& device : simulation.devices)
        check_near(device.sent, times * padded * (k - 1) / k +
                                    2 * padded / k * (groups - 1) / groups + commit * (n - 1) / n);
    }
}

TEST_CASE("a mirror costs a range of gradients to send, and to keep what the owner does") {
  const auto model = chain(4, 16);
  CostModel adam = unit_costs(*model);
  adam.moments = 2;
  const double params = 4 * 64 * 8;
  for (const int stage : {1, 2, 3})
    for (const int copies : {1, 3}) {
      CAPTURE(stage, copies);
      const Compiled plain = compile_ok(model, zero(stage, 4, 1));
      const Compiled mirrored = compile_ok(model, zero(stage, 4, 1).mirror({}, copies));
      const Simulation without = simulate_ok(plain.plans, *model, adam, free_links());
      const Simulation with = simulate_ok(mirrored.plans, *model, adam, free_links());
      const auto steps = static_cast<int64_t>(8 * plain.plans.buckets.size());
      for (const DeviceReport& device : with.devices) {
        check_near(device.sent, without.devices[0].sent + copies * params / 4);
        CHECK(device.at_peak[static_cast<size_t>(Holding::Mirrors)] ==
              copies * (4 * static_cast<int64_t>(params) / 4 + steps));
      }
    }
}

TEST_CASE("a cost model of another model is refused") {
  const auto model = chain(4, 8);
  const Compiled compiled = compile_ok(model, Strategy().schedule("single", 4));
  const auto refused = simulate(compiled.plans, *model, declared_costs(*chain(3, 8)), free_links());
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().message == "the cost model has 4 calls, the model 'chain' 5");
}

TEST_CASE("plans that hang are told, with the instruction") {
  const auto model = chain(2, 4);
  PlanSet plans = compile_ok(model, Strategy().schedule("1f1b:2", 4)).plans;
  auto& instructions = plans.plans[0].instructions;
  instructions.erase(std::find_if(instructions.begin(), instructions.end(),
                                  [](const Instruction& each) { return each.op == Opcode::Send; }));
  const auto hung = simulate(plans, *model, unit_costs(*model), free_links());
  REQUIRE_FALSE(hung.ok());
  CHECK(hung.error().message == "the simulated plans hang");
  CHECK(hung.error().where.find("device") != std::string::npos);
}

TEST_CASE("a backward in two passes on what the stage before waits for sooner") {
  // Two stages, one microbatch: F F B B is 1 + 1 + 2 + 2. With BI = BW = 1 the first stage's BI
  // follows the second's: 1 + 1 + 1 + 1, then its BW.
  const auto model = chain(2, 2);
  const CostModel costs = unit_costs(*model);
  const auto simulated = [&](Strategy strategy) {
    const Compiled compiled = compile_ok(model, strategy);
    return simulate_ok(compiled.plans, *model, costs, free_links());
  };
  Strategy whole = Strategy().place({{"layer", 0}}, {0}).place({{"layer", 1}}, {1});
  Strategy apart = whole;
  apart.split_backward({});
  CHECK(simulated(whole).makespan == 6);
  const Simulation simulation = simulated(apart);
  CHECK(simulation.makespan == 5);
  for (const DeviceReport& device : simulation.devices) {
    CHECK(device.busy == 3);
    CHECK(device.bubble == 2);
  }
}

TEST_CASE("what the backward for weights needs is held until it") {
  // Three microbatches forward, then BI of all, then BW of all: what each microbatch saved is let
  // go by its BI, and what that leaves is held.
  const auto activations_at_peak = [](int64_t deferred) {
    const auto model = saving_chain(2, 3, {.saved = {5'000'000, 0}, .deferred = {deferred, 0}});
    const Compiled compiled =
        compile_ok(model, Strategy().split({}, 3).place({}, {0}).split_backward({}).order(
                              {{{{"PASS", "F"}}}, {{{"PASS", "BI"}}}, {{{"PASS", "BW"}}}}));
    const Simulation simulation =
        simulate_ok(compiled.plans, *model, unit_costs(*model), free_links());
    return simulation.devices[0].at_peak[static_cast<size_t>(Holding::Activations)];
  };
  // At the peak all forwards are done; what a BI leaves is less than what it lets go of.
  CHECK(activations_at_peak(2'000'000) == 30'000'000);
  // Before the first BW: the first layer, with no gradient to hand on, has kept what it saved.
  CHECK(activations_at_peak(9'000'000) == 15'000'000 + 27'000'000);
}
