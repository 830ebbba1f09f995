// The named builders, against the published schedules.
#include "compiler/passes/expand_schedules.h"
#include "compiler/strategies/named_schedules.h"
#include "compiler/strategies/strategies.h"
#include "tests/compiler/models.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::compiler;
using namespace piper::test;

TEST_CASE("stages are cut evenly and hold every call once") {
  for (int calls : {3, 8, 13})
    for (int stages : {1, 2, 3, 4}) {
      auto model = chain(calls, 8);
      auto cut = cut_stages(*model, stages);
      if (calls + 1 < stages) {
        CHECK_FALSE(cut.ok());
        continue;
      }
      REQUIRE(cut.ok());
      std::vector<ir::CallId> all;
      size_t largest = 0;
      for (const auto& stage : *cut) {
        CHECK_FALSE(stage.empty());
        all.insert(all.end(), stage.begin(), stage.end());
        largest = std::max<size_t>(largest,
                                   std::count_if(stage.begin(), stage.end(), [&](ir::CallId call) {
                                     return model->call(call).flops_per_row > 0;
                                   }));
      }
      CHECK(all.size() == model->calls.size());
      CHECK(std::is_sorted(all.begin(), all.end()));
      CHECK(largest <=
            static_cast<size_t>((calls + stages - 1) / stages) + (stages > calls ? 1 : 0));
    }
}

namespace {

/// Calls of these seconds, a tenth of it forward, by the row. The loss is the last.
CostModel costs_of(const std::vector<double>& seconds) {
  CostModel costs;
  for (double s : seconds)
    costs.calls.push_back({.forward = {0, s / 10}, .backward = {s - s / 10, 0}});
  return costs;
}

double costliest(const std::vector<std::vector<ir::CallId>>& stages, const CostModel& costs) {
  double largest = 0;
  for (const auto& stage : stages) {
    double sum = 0;
    for (ir::CallId call : stage)
      sum += costs.seconds(call, 1);
    largest = std::max(largest, sum);
  }
  return largest;
}

/// By trying all cuts: the costliest of `stages` runs over the calls from `first` on.
double least_costliest(const CostModel& costs, size_t first, int stages) {
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t end = first + 1; end <= costs.calls.size(); ++end) {
    sum += costs.seconds(ir::CallId(end - 1), 1);
    const bool last = stages == 1;
    if (last != (end == costs.calls.size()))
      continue;
    best = std::min(best, last ? sum : std::max(sum, least_costliest(costs, end, stages - 1)));
  }
  return best;
}

} // namespace

TEST_CASE("uneven calls are balanced by what they cost") {
  // A heavy embedding and a heavy head: by FLOPs, all alike, the cut is 3 + 3 + 2.
  const auto model = chain(8, 8);
  const CostModel costs = costs_of({6, 1, 1, 1, 1, 1, 1, 6, 0});
  const auto cut = cut_stages(*model, 3, &costs);
  REQUIRE(cut.ok());
  CHECK((*cut)[0].size() == 1);
  CHECK((*cut)[1].size() == 6);
  CHECK(costliest(*cut, costs) == Approx(6));
  CHECK(costliest(*cut_stages(*model, 3), costs) > 7.5);
  // A fixed part counts for less the more rows there are: with 8 the first call is the lightest.
  CostModel fixed = costs_of(std::vector<double>(9, 0));
  for (size_t c = 0; c < 8; ++c)
    fixed.calls[c].forward = c == 0 ? Affine{.fixed = 7} : Affine{.per_row = 1};
  CHECK((*cut_stages(*model, 2, &fixed, 1))[0].size() == 1);
  CHECK((*cut_stages(*model, 2, &fixed, 8))[0].size() == 4);
}

TEST_CASE("no cut is better than the one that is chosen, and every parameter is placed once") {
  CHECK(rc::check("any costs", [] {
    const int calls = *rc::gen::inRange(2, 9), stages = *rc::gen::inRange(1, 5);
    std::vector<double> seconds;
    for (int c = 0; c < calls; ++c)
      seconds.push_back(*rc::gen::inRange(0, 20));
    seconds.push_back(*rc::gen::inRange(0, 20));
    seconds[0] += 1; // somebody costs something
    // The loss belongs to the last layer's segment: those are not cut.
    CostModel costs = costs_of(seconds), pieces = costs;
    pieces.calls[calls - 1].backward.fixed += costs.seconds(ir::CallId(calls), 1);
    pieces.calls.pop_back();
    RC_PRE(stages <= calls);
    const auto model = chain(calls, 8);
    const auto cut = cut_stages(*model, stages, &costs);
    RC_ASSERT(cut.ok());
    RC_ASSERT(std::abs(costliest(*cut, costs) - least_costliest(pieces, 0, stages)) < 1e-9);
    const auto strategy = expand_schedules(
        *model, ir::Strategy().schedule("1f1b:" + std::to_string(stages), 4), &costs);
    RC_ASSERT(strategy.ok());
    const auto compiled = compile_ok(model, *strategy);
    std::vector<int> holders(model->params.size());
    for (const ir::Bucket& bucket : compiled.plans.buckets)
      for (ir::ParamId param : bucket.params)
        ++holders[param.value];
    RC_ASSERT(std::all_of(holders.begin(), holders.end(), [](int n) { return n == 1; }));
  }));
}

TEST_CASE("a product numbers devices stage by stage") {
  auto model = chain(4, 8);
  auto strategy = build_strategy(*model, {"dp:2x1f1b:2", 4});
  REQUIRE(strategy.ok());
  std::vector<std::vector<ir::DeviceIndex>> devices;
  for (const ir::Directive& directive : strategy->directives)
    if (const auto* replicate = std::get_if<ir::Replicate>(&directive.body))
      devices.push_back(replicate->devices);
  CHECK(devices == std::vector<std::vector<ir::DeviceIndex>>{{0, 1}, {2, 3}});
  CHECK(std::get<ir::Split>(strategy->directives[0].body).count == 2);
  CHECK(strategy->to_json() == build_strategy(*model, {"1f1b:2xdp:2", 4})->to_json());
}

namespace {

/// What a device computes, in issue order. Stage s of the model is layer s alone.
std::vector<Action> computed(const Compiled& compiled, ir::DeviceIndex device) {
  const ir::PlanSet& plans = compiled.plans;
  std::vector<Action> actions;
  for (const ir::Instruction& i : plans.plans[plans.role_of(device).value].instructions) {
    const char pass = i.op == ir::Opcode::Forward          ? 'F'
                      : i.op == ir::Opcode::Backward       ? 'B'
                      : i.op == ir::Opcode::BackwardInput  ? 'I'
                      : i.op == ir::Opcode::BackwardWeight ? 'W'
                                                           : 0;
    if (pass)
      actions.push_back({static_cast<int>(i.chunks.front().front().value), pass, i.microbatch});
  }
  return actions;
}

} // namespace

TEST_CASE("every schedule compiles to plans that run its rows") {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "loopedbfs", "zbh1", "zbh2", "zb1p",
                           "zbv", "vhalf", "vmin", "dualpipe", "dualpipev"})
    for (int p : {2, 3})
      for (int64_t m : {2, 7}) {
        if (name == std::string_view("dualpipe") && p % 2 == 1)
          continue;
        INFO(name << ":" << p << ", " << m << " microbatches");
        const ScheduleTable table = *named_schedule(name, p, m);
        auto model = chain(table.stages(), 2 * m);
        const std::string expression = fmt::format("{}:{}xdp:2", name, p);
        const Compiled compiled = compile_ok(model, ir::Strategy().schedule(expression, 2 * m));
        CHECK(*schedule_of(*compiled.strategy) == table);
        for (int rank = 0; rank < p; ++rank) {
          const std::vector<Action> actions = computed(compiled, 2 * rank);
          auto next = actions.begin();
          for (const Step& step : table.rows()[rank]) {
            std::vector<Action> expected = step.actions();
            REQUIRE(static_cast<size_t>(actions.end() - next) >= expected.size());
            // Side by side means that either may be issued first.
            CHECK(std::is_permutation(expected.begin(), expected.end(), next));
            next += expected.size();
          }
          CHECK(next == actions.end());
        }
      }
}

TEST_CASE("a stage without parameters has no backward for weights to wait for") {
  // The loss alone is the last of five stages.
  auto model = chain(4, 4);
  const Compiled compiled = compile_ok(model, ir::Strategy().schedule("zbh1:5", 4));
  for (const Action& action : computed(compiled, 4))
    CHECK(action.pass != 'W');
}

TEST_CASE("the two copies of DualPipe's stages are reduced over both holders") {
  const Compiled compiled = compile_ok(chain(4, 8), ir::Strategy().schedule("dualpipe:4", 8));
  REQUIRE(compiled.plans.buckets.size() == 2);
  const auto holders = [&](size_t bucket) {
    return compiled.plans.groups[compiled.plans.buckets[bucket].group.value].devices;
  };
  CHECK(holders(0) == std::vector<ir::DeviceIndex>{0, 3});
  CHECK(holders(1) == std::vector<ir::DeviceIndex>{1, 2});
  const auto losses = compiled.plans.loss_order();
  REQUIRE(losses.size() == 8);
  CHECK(losses[0] == std::vector<ir::DeviceIndex>{3});
  CHECK(losses[7] == std::vector<ir::DeviceIndex>{0});
}

TEST_CASE("a table in a strategy file") {
  const std::string json = R"([
  {"op": "schedule", "name": "dp:2xtable", "table": ["0F0,0F1,0B0,0B1", "1F0,1B0,1F1,1B1"]}
]
)";
  const auto strategy = ir::Strategy::parse(json);
  REQUIRE(strategy.ok());
  CHECK(strategy->to_json() == json);
  const Compiled compiled = compile_ok(chain(2, 4), *strategy);
  CHECK(compiled.plans.devices.size() == 4);
  const std::string named = build_strategy(*chain(2, 4), {"dp:2x1f1b:2", 4})->to_json();
  CHECK(compiled.strategy->to_json() == named);
}

TEST_CASE("the backward of the last microbatch is cut where buckets are complete") {
  auto model = chain(6, 8);
  const Compiled compiled = compile_ok(
      model, ir::Strategy()
                 .split({}, 2)
                 .replicate(ir::Replicate{.filter = {}, .devices = {0, 1}, .bucket_mb = 0.001})
                 .fuse({{"PASS", "F"}})
                 .fuse({{"PASS", "B"}, {"MB", 0}})
                 .fuse({{"PASS", "B"}, {"MB", 1}, {"layer", {std::vector<int64_t>{4, 5}}}}));
  CHECK(compiled.plans.buckets.size() == 3);
  int backwards = 0;
  for (const ir::Instruction& i : compiled.plans.plans[0].instructions)
    backwards += i.op == ir::Opcode::Backward;
  CHECK(backwards == 1 + 5);
}
