// The pictures of a simulation: that they show what it says.
#include "compiler/simulate/render.h"
#include "compiler/simulate/timeline.h"
#include "tests/compiler/models.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::compiler;
using namespace piper::ir;
using namespace piper::test;

namespace {

/// Two stages, two microbatches, F = 1, B = 2, a message takes 1.
Timeline two_stages() {
  const auto model = chain(2, 2);
  const PlanSet plans = compile_ok(model, Strategy().schedule("1f1b:2", 2)).plans;
  CostModel costs;
  for (const ModelCall& call : model->calls)
    costs.calls.push_back(call.name == "loss" ? CallCost{}
                                              : CallCost{.forward = {1, 0}, .backward = {2, 0}});
  Cluster cluster;
  cluster.levels = {{.name = "link", .bandwidth = 64}};
  const auto simulation = simulate(plans, *model, costs, cluster);
  REQUIRE(simulation.ok());
  return timeline_of(*simulation, plans, model.get());
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1))
    ++found;
  return found;
}

} // namespace

TEST_CASE("the terminal shows each stream as in the schedule's figure") {
  // 11 and a barrier of an eighth in 89 columns: 8 of them a second.
  const std::string text = render_terminal(two_stages(), 89 + 18);
  CHECK(
      text ==
      "device 0 compute  "
      "0░░░░░░░1░░░░░░░                                0▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓        1▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓─\n"
      "device 0 recv     "
      "                                        0───────                1───────\n"
      "device 1 recv     "
      "        0───────1───────\n"
      "device 1 compute  "
      "                0░░░░░░░0▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓1░░░░░░░1▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓                        ─\n"
      "                  ░ forward   ▓ backward   ─ communication   "
      "11.125 s in all\n");
}

TEST_CASE("the SVG has a shape for every span, and names it") {
  const Timeline timeline = two_stages();
  const std::string svg = render_svg(timeline, "1f1b:2 <& more>");
  size_t spans = 0;
  for (const Row& row : rows(timeline))
    spans += row.spans.size();
  CHECK(spans == 8 + 4 + 2); // passes, messages, the barrier on both
  CHECK(count(svg, "<title>") == spans);
  CHECK(svg.find("<title>F lin0 @1 · 1.000 s to 2.000 s</title>") != std::string::npos);
  CHECK(svg.find("1f1b:2 &lt;&amp; more&gt;") != std::string::npos);
  CHECK(svg.find("update") == std::string::npos); // takes no time here: not in the legend
  CHECK(svg.starts_with("<svg "));
  CHECK(svg.ends_with("</svg>\n"));
}

TEST_CASE("the pictures in docs/schedules") {
  // Each named schedule on 4 ranks with 8 microbatches, F = I = W = 1 for a rank's part of the
  // model and messages that take no time. With PIPER_UPDATE_GOLDEN set they are written anew.
  constexpr int kRanks = 4,
                kCalls = 16; // a stage has the same number of calls for 1, 2 or 4 a rank
  const auto model = chain(kCalls, 8);
  CostModel costs;
  costs.calls.assign(model->calls.size(), CallCost{});
  const double one = static_cast<double>(kRanks) / kCalls;
  for (int c = 0; c < kCalls; ++c)
    costs.calls[c] = {.forward = {one, 0},
                      .backward = {2 * one, 0},
                      .backward_input = {one, 0},
                      .backward_weight = {one, 0}};
  Cluster cluster;
  cluster.levels = {{.name = "free"}};
  for (const char* name : {"gpipe", "1f1b", "interleaved", "loopedbfs", "zbh1", "zbh2", "zb1p",
                           "zbv", "vhalf", "vmin", "dualpipe", "dualpipev", "wave"}) {
    INFO(name);
    const std::string title = std::string(name) + ":4, 8 microbatches";
    const auto compiled = compile_ok(model, Strategy().schedule(std::string(name) + ":4", 8));
    const auto simulation = simulate(compiled.plans, *model, costs, cluster);
    REQUIRE(simulation.ok());
    const std::string svg =
        render_svg(timeline_of(*simulation, compiled.plans, model.get()), title);
    const std::string path = std::string(PIPER_SOURCE_DIR) + "/docs/schedules/" + name + ".svg";
    if (std::getenv("PIPER_UPDATE_GOLDEN"))
      std::ofstream(path) << svg;
    else
      CHECK(svg == read_file(path));
  }
}

TEST_CASE("the trace holds every span and message") {
  const Timeline timeline = two_stages();
  const auto trace = nlohmann::json::parse(render_trace(timeline));
  ptrdiff_t spans = 0;
  for (const TimelineLane& lane : timeline.lanes)
    spans += static_cast<ptrdiff_t>(lane.spans.size());
  const auto& events = trace.at("traceEvents");
  const auto with_phase = [&](const char* phase) {
    return std::count_if(events.begin(), events.end(),
                         [&](const auto& event) { return event.at("ph") == phase; });
  };
  CHECK(with_phase("X") == spans);
  CHECK(with_phase("s") == 4);
  CHECK(with_phase("f") == 4);
  const auto found = std::find_if(events.begin(), events.end(), [](const auto& event) {
    return event.at("name") == "F lin0 @1";
  });
  REQUIRE(found != events.end());
  CHECK(found->at("ts") == 1e6);
  CHECK(found->at("dur") == 1e6);
  CHECK(found->at("cat") == "forward");
}

TEST_CASE("seconds for people") {
  CHECK(format_seconds(1.5) == "1.500 s");
  CHECK(format_seconds(0.00125) == "1.250 ms");
  CHECK(format_seconds(4.5e-6) == "4.50 us");
}
