// What a strategy does to memory, measured by the counting allocator while it trains.
#include "compiler/simulate/device_classes.h"
#include "compiler/simulate/memory_ledger.h"
#include "compiler/simulate/timeline.h"
#include "examples/models/registry.h"
#include "ir/memory_bound.h"
#include "tests/parity/cluster.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>
#include <random>

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

std::shared_ptr<const Model> mlp() {
  auto model = models::make_mlp(R"({"layers": 15, "d_in": 64, "d_hidden": 256, "d_out": 16,
                                    "batch": 32, "skip": true, "dtype": "float32"})");
  if (!model.ok())
    FAIL(model.error().to_string());
  return std::make_shared<const Model>(*std::move(model));
}

/// Trains some iterations.
std::unique_ptr<Cluster> trained(std::shared_ptr<const Model> model, const ir::Strategy& strategy,
                                 uint32_t devices, int iterations = 3) {
  auto cluster = std::make_unique<Cluster>(std::move(model), devices);
  if (auto started = cluster->start(strategy); !started.ok())
    FAIL(started.error().to_string());
  if (auto losses = cluster->steps(iterations); !losses.ok())
    FAIL(losses.error().to_string());
  return cluster;
}
std::unique_ptr<Cluster> trained(const ir::Strategy& strategy, uint32_t devices) {
  return trained(gpt(), strategy, devices);
}

/// The peak of each device if in one iteration, which has just ended, things happened when they did
/// and took what the compiler says.
std::vector<int64_t> replayed_peaks(Cluster& cluster, const ir::ModelSpec& model,
                                    int64_t moments = 2) {
  const ir::PlanSet& plans = cluster.plans();
  const compiler::Ranks ranks(plans);
  struct Event {
    double time;
    int order; ///< of events at one time: what ends goes before what begins
    ir::DeviceIndex device;
    uint32_t instruction;
  };
  enum { kDelivered, kEnd, kBegin };
  std::vector<Event> events;
  std::map<std::tuple<ir::DeviceIndex, ir::DeviceIndex, uint32_t, int32_t>, uint32_t> sends;
  std::vector<std::pair<decltype(sends)::key_type, double>> received;
  ir::Timeline timeline;
  for (const auto& [device, role] : plans.devices)
    timeline.append(cluster.device(device).timeline());
  const auto spans = compiler::by_instruction(timeline, plans);
  size_t place = 0;
  for (const auto& [device, role] : plans.devices) {
    const auto& instructions = plans.plans[role.value].instructions;
    for (uint32_t i = 0; i < instructions.size(); ++i) {
      const ir::Instruction& each = instructions[i];
      const ir::TimelineSpan& span = *spans[place][i];
      events.push_back({span.start, kBegin, device, i});
      events.push_back({span.end, kEnd, device, i});
      if (each.op == ir::Opcode::Send)
        sends[{device, ranks.peer(device, each), each.edge.value, each.microbatch}] = i;
      else if (each.op == ir::Opcode::Recv)
        received.push_back(
            {{ranks.peer(device, each), device, each.edge.value, each.microbatch}, span.end});
    }
    ++place;
  }
  for (const auto& [key, time] : received)
    events.push_back({time, kDelivered, std::get<0>(key), sends.at(key)});
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return std::pair(a.time, a.order) < std::pair(b.time, b.order);
  });
  std::vector<compiler::MemoryLayout> layouts;
  for (uint32_t role = 0; role < plans.roles.size(); ++role)
    layouts.emplace_back(plans, ir::RoleId(role), model, moments);
  std::map<ir::DeviceIndex, compiler::MemoryLedger> ledgers;
  for (const auto& [device, role] : plans.devices)
    ledgers.try_emplace(device, layouts[role.value]);
  for (const Event& event : events) {
    compiler::MemoryLedger& ledger = ledgers.at(event.device);
    if (event.order == kBegin)
      ledger.begin(event.instruction);
    else if (event.order == kEnd)
      ledger.end(event.instruction);
    else
      ledger.delivered(event.instruction);
  }
  std::vector<int64_t> peaks;
  for (const auto& [device, ledger] : ledgers)
    peaks.push_back(ledger.peak());
  return peaks;
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

// The bound is what the worst timing takes. How close a run comes depends on its own where devices
// wait for each other: a message, a gathered bucket or what was offloaded may come as soon as it
// can, or when there is room again; two streams that compute at once may meet at their peaks, or
// not.
TEST_CASE("the peak is foretold: never below, and within 2% but for what timing leaves open") {
  struct Entry {
    const char* expression; ///< or how the backward is split on one device
    uint32_t devices;
    bool timing = false; ///< leaves something open
  };
  constexpr bool kTiming = true;
  constexpr double kExact = 1.02;
  constexpr double kOpen[] = {1.05, 1.15, 1.2, 1.2}; // by variant
  struct Figures {
    int all = 0, within = 0;
    double worst = 1;
    int timed_within = 0; ///< of the peaks at the run's own timing
    double least_timed = 1, most_timed = 1;
  } figures[4];
  constexpr int kPlain = 0, kRecomputed = 1, kOffloaded = 2;
  const Entry strategies[] = {
      {"single", 1},
      {"apart", 1},
      {"apart fused", 1},
      {"dp:2", 2},
      {"zero1:2", 2},
      {"zero2:2", 2, kTiming},
      {"zero3:2", 2, kTiming},
      {"zero3:4", 4, kTiming},
      {"gpipe:2", 2, kTiming},
      {"gpipe:4", 4, kTiming},
      {"1f1b:2", 2, kTiming},
      {"1f1b:4", 4, kTiming},
      {"interleaved:2", 2, kTiming},
      {"loopedbfs:2", 2, kTiming},
      {"zbh1:3", 3, kTiming},
      {"zbh2:3", 3, kTiming},
      {"zb1p:2", 2, kTiming},
      {"zbv:2", 2, kTiming},
      {"vhalf:2", 2, kTiming},
      {"vmin:3", 3, kTiming},
      {"dualpipe:2", 2, kTiming},
      {"dualpipe:4", 4, kTiming},
      {"dualpipev:2", 2, kTiming},
      {"dp:2x1f1b:2", 4, kTiming},
      {"zero1:2xgpipe:2", 4, kTiming},
      {"zero2:2x1f1b:2", 4, kTiming},
      {"zero3:2x1f1b:2", 4, kTiming},
      {"dp:2xzbv:2", 4, kTiming},
      {"dp:2xdualpipev:2", 4, kTiming},
      {"zero1:2xdualpipe:2", 4, kTiming},
  };
  const auto strategy_of = [](const std::string& expression) {
    if (!expression.starts_with("apart"))
      return named(expression, 8);
    ir::Strategy strategy = ir::Strategy().split({}, 8).place({}, {0}).split_backward({}).order(
        {{{{"PASS", "F"}}}, {{{"PASS", "BI"}}}, {{{"PASS", "BW"}}}});
    return expression == "apart" ? strategy : strategy.fuse({});
  };
  const std::pair<const char*, std::shared_ptr<const Model>> models[] = {{"gpt", gpt()},
                                                                         {"mlp", mlp()}};
  std::mt19937 random(Catch::rngSeed());
  for (const auto& [name, model] : models)
    for (const Entry& entry : strategies)
      for (const int variant : {kPlain, kRecomputed, kOffloaded, kRecomputed | kOffloaded}) {
        if (!std::getenv("PIPER_LONG") && random() % 10 != 0)
          continue;
        INFO(name << " " << entry.expression << (variant & kRecomputed ? " recomputed" : "")
                  << (variant & kOffloaded ? " offloaded" : ""));
        ir::Strategy strategy = strategy_of(entry.expression);
        if (variant & kRecomputed)
          strategy.recompute({{"layer", "*"}});
        if (variant & kOffloaded)
          strategy.offload({.filter = {}, .activations = true, .optimizer = true});
        const auto cluster = trained(model, strategy, entry.devices, 0);
        const auto bounds =
            ir::bound_memory(cluster->plans(), *model->spec, executor::OptimizerSpec().state());
        REQUIRE(bounds.ok());
        REQUIRE(bounds->size() == entry.devices);
        std::vector<int64_t> replayed(entry.devices);
        for (int step = 0; step < 3; ++step) {
          REQUIRE(cluster->step().ok());
          const auto peaks = replayed_peaks(*cluster, *model->spec);
          for (uint32_t device = 0; device < entry.devices; ++device)
            replayed[device] = std::max(replayed[device], peaks[device]);
        }
        for (const ir::MemoryBound& bound : *bounds) {
          INFO("device " << bound.device);
          const int64_t measured = cluster->device(bound.device).peak_bytes();
          CHECK(measured <= bound.peak());
          const double ratio = static_cast<double>(bound.peak()) / static_cast<double>(measured);
          const bool open = entry.timing || (variant & kOffloaded);
          CHECK(ratio <= (open ? kOpen[variant] : kExact));
          // What was open the run has settled, but for a thread that loses its core between what
          // it frees and when it says so: at most to the worst timing.
          Figures& its = figures[variant];
          const double timed =
              static_cast<double>(replayed[bound.device]) / static_cast<double>(measured);
          CHECK(timed >= 0.995);
          CHECK(replayed[bound.device] <= bound.peak());
          its.least_timed = std::min(its.least_timed, timed);
          its.most_timed = std::max(its.most_timed, timed);
          its.timed_within += std::abs(timed - 1) <= 0.02;
          ++its.all;
          its.within += ratio <= kExact;
          its.worst = std::max(its.worst, ratio);
        }
      }
  for (int variant = 0; variant < 4 && std::getenv("PIPER_LONG"); ++variant)
    WARN((variant & kRecomputed ? "recomputed " : "")
         << (variant & kOffloaded ? "offloaded " : "") << figures[variant].within << " of "
         << figures[variant].all << " devices within 2%, worst " << figures[variant].worst
         << "; at the run's own timing " << figures[variant].timed_within << ", "
         << figures[variant].least_timed << " to " << figures[variant].most_timed);
}

TEST_CASE("a peak at a run's own timing tells an array that is not counted") {
  const auto model = gpt();
  const auto cluster = trained(model, named("1f1b:2", 8), 2, 1);
  const auto right = replayed_peaks(*cluster, *model->spec),
             wrong = replayed_peaks(*cluster, *model->spec, 1);
  for (uint32_t device = 0; device < 2; ++device) {
    const auto measured = static_cast<double>(cluster->device(device).peak_bytes());
    CHECK(static_cast<double>(right[device]) >= 0.995 * measured);
    CHECK(static_cast<double>(wrong[device]) < 0.9 * measured);
  }
}

TEST_CASE("the peak of calls that a group cuts is foretold from that of the whole call") {
  auto made = models::make_llama(
      R"({"layers": 2, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 128, "seq": 16,
          "batch": 16, "dtype": "float32"})");
  REQUIRE(made.ok());
  const auto model = std::make_shared<const Model>(*std::move(made));
  for (const auto& [expression, devices] :
       {std::pair("tp:2", 2U), {"sp:2", 2U}, {"tp:2xzero1:2", 4U}, {"tp:2x1f1b:2", 4U}}) {
    const auto cluster = trained(model, named(expression, 4), devices);
    const auto bounds =
        ir::bound_memory(cluster->plans(), *model->spec, executor::OptimizerSpec().state());
    REQUIRE(bounds.ok());
    for (const ir::MemoryBound& bound : *bounds) {
      const int64_t measured = cluster->device(bound.device).peak_bytes();
      INFO(expression << " device " << bound.device << ": " << measured << " of " << bound.peak());
      CHECK(measured <= bound.peak());
      CHECK(static_cast<double>(bound.peak()) <= 1.2 * static_cast<double>(measured));
    }
  }
}

TEST_CASE("the peak of experts is foretold, however tokens are routed") {
  auto made = models::make_moe(
      R"({"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "experts": 4, "top_k": 1,
          "d_ff": 128, "seq": 32, "batch": 16, "dtype": "float32"})");
  REQUIRE(made.ok());
  Model uneven = *made;
  uneven.data = [data = made->data](const BatchRequest& request) {
    return at::zeros_like(data(request)); // tokens that are all alike go to one expert
  };
  for (const bool even : {true, false})
    for (const auto& [expression, devices] : {std::pair("ep:2", 2U), {"tp:2xep:4", 4U}}) {
      const auto model = std::make_shared<const Model>(even ? *made : uneven);
      const auto cluster = trained(model, named(expression, 2), devices);
      const auto bounds =
          ir::bound_memory(cluster->plans(), *model->spec, executor::OptimizerSpec().state());
      REQUIRE(bounds.ok());
      int64_t most = 0, least = std::numeric_limits<int64_t>::max();
      for (const ir::MemoryBound& bound : *bounds) {
        const int64_t measured = cluster->device(bound.device).peak_bytes();
        INFO(expression << " device " << bound.device << ": " << measured << " of "
                        << bound.peak());
        CHECK(measured <= bound.peak());
        most = std::max(most, measured);
        least = std::min(least, measured);
      }
      INFO(expression << ": " << least << " to " << most << " of " << bounds->front().peak());
      CHECK(static_cast<double>(bounds->front().peak()) <= 1.5 * static_cast<double>(most));
      if (!even)
        CHECK(static_cast<double>(most) > 1.2 * static_cast<double>(least));
    }
}

TEST_CASE("a strategy that would pass the cap is refused when it is compiled") {
  const auto model = gpt();
  compiler::CompileOptions options;
  options.optimizer = executor::OptimizerSpec().state();
  const auto strategy = named("1f1b:2", 8);
  const auto compiled = compiler::compile(model->spec, strategy, options);
  REQUIRE(compiled.ok());
  int64_t most = 0;
  const auto bounds = ir::bound_memory(compiled->plans, *model->spec, options.optimizer);
  REQUIRE(bounds.ok());
  for (const auto& bound : *bounds)
    most = std::max(most, bound.peak());
  options.memory_cap = most;
  CHECK(compiler::compile(model->spec, strategy, options).ok());
  options.memory_cap = most - 1;
  const auto refused = compiler::compile(model->spec, strategy, options);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().kind == ErrorKind::OutOfMemory);
  CHECK(refused.error().where.find("device 0, role g0, ") == 0);
  CHECK(refused.error().message.find(fmt::format("up to {} bytes may be live, the cap is {}: "
                                                 "parameters 873472, gradients 873472",
                                                 most, most - 1)) == 0);
  CHECK(refused.error().message.find("; most was left by F embed..add2.3 @") != std::string::npos);
  CHECK(refused.error().hint.find("shard the state over replicas") == 0);
}
