// The named builders, against the published schedules.
#include "compiler/strategies/strategies.h"
#include "tests/compiler/models.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::compiler;
using namespace piper::test;

namespace {

std::string print(const std::vector<Step>& steps) {
  std::string text;
  for (const Step& step : steps)
    text += step.pass + std::to_string(step.microbatch) + " ";
  return text;
}

/// When each step ends if F takes 1, B takes 2 and transfers nothing: the schedule as published.
struct Timing {
  double makespan = 0;
  std::vector<double> idle;
  std::vector<int> live; ///< most microbatches between their F and their B
};

Timing simulate(StepBuilder build, int p, int64_t m) {
  std::vector<std::vector<Step>> steps;
  for (int s = 0; s < p; ++s)
    steps.push_back(build(p, s, m));
  std::map<std::pair<char, std::pair<int, int64_t>>, double> end;
  std::vector<size_t> next(p);
  std::vector<double> clock(p), busy(p);
  Timing timing{0, std::vector<double>(p), std::vector<int>(p)};
  std::vector<int> live(p);
  for (bool progress = true; progress;) {
    progress = false;
    for (int s = 0; s < p; ++s)
      while (next[s] < steps[s].size()) {
        const Step step = steps[s][next[s]];
        double ready = 0;
        auto need = [&](char pass, int stage) {
          auto done = end.find({pass, {stage, step.microbatch}});
          if (done == end.end())
            return false;
          ready = std::max(ready, done->second);
          return true;
        };
        if (step.pass == 'F' && s > 0 && !need('F', s - 1))
          break;
        if (step.pass == 'B' && (!need('F', s) || (s + 1 < p && !need('B', s + 1))))
          break;
        const double cost = step.pass == 'F' ? 1 : 2;
        clock[s] = std::max(clock[s], ready) + cost;
        busy[s] += cost;
        end[{step.pass, {s, step.microbatch}}] = clock[s];
        live[s] += step.pass == 'F' ? 1 : -1;
        timing.live[s] = std::max(timing.live[s], live[s]);
        ++next[s];
        progress = true;
      }
  }
  for (int s = 0; s < p; ++s) {
    REQUIRE(next[s] == steps[s].size());
    timing.makespan = std::max(timing.makespan, clock[s]);
  }
  for (int s = 0; s < p; ++s)
    timing.idle[s] = timing.makespan - busy[s];
  return timing;
}

} // namespace

TEST_CASE("1F1B is as in the figure of its paper") {
  CHECK(print(one_f_one_b_steps(4, 0, 8)) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7 ");
  CHECK(print(one_f_one_b_steps(4, 2, 8)) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7 ");
  CHECK(print(one_f_one_b_steps(4, 3, 8)) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 ");
}

TEST_CASE("fewer microbatches than stages") {
  CHECK(print(one_f_one_b_steps(4, 0, 2)) == "F0 F1 B0 B1 ");
  CHECK(print(gpipe_steps(4, 0, 2)) == "F0 F1 B0 B1 ");
  CHECK(print(one_f_one_b_steps(4, 3, 1)) == "F0 B0 ");
}

TEST_CASE("idle time and live activations are the published ones") {
  // With F = 1 and B = 2: idle (p - 1)(F + B) on every rank; GPipe keeps m, 1F1B p - rank.
  for (int p : {2, 4, 8})
    for (int64_t m : {8, 16}) {
      const Timing gpipe = simulate(gpipe_steps, p, m),
                   alternate = simulate(one_f_one_b_steps, p, m);
      for (int s = 0; s < p; ++s) {
        CHECK(gpipe.idle[s] == 3.0 * (p - 1));
        CHECK(alternate.idle[s] == 3.0 * (p - 1));
        CHECK(gpipe.live[s] == m);
        CHECK(alternate.live[s] == p - s);
      }
      CHECK(gpipe.makespan == 3.0 * (m + p - 1));
    }
  CHECK(simulate(one_f_one_b_steps, 4, 8).makespan == 33);
}

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

TEST_CASE("a product numbers devices stage by stage") {
  auto model = chain(4, 8);
  auto strategy = build_strategy(*model, "dp:2x1f1b:2", 4);
  REQUIRE(strategy.ok());
  std::vector<std::vector<ir::DeviceIndex>> devices;
  for (const ir::Directive& directive : strategy->directives)
    if (const auto* replicate = std::get_if<ir::Replicate>(&directive.body))
      devices.push_back(replicate->devices);
  CHECK(devices == std::vector<std::vector<ir::DeviceIndex>>{{0, 1}, {2, 3}});
  CHECK(std::get<ir::Split>(strategy->directives[0].body).count == 2);
  CHECK(strategy->to_json() == build_strategy(*model, "1f1b:2xdp:2", 4)->to_json());
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
