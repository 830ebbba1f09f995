#include "tools/bench/simulate.h"

#include "compiler/compile.h"
#include "compiler/simulate/render.h"
#include "compiler/simulate/simulate.h"
#include "compiler/simulate/timeline.h"
#include "tools/bench/costs.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

namespace piper::cli {

namespace {

/// Seconds of an iteration by kind of work, on the first device's streams that compute.
using Parts = std::map<std::string, double>;

struct Figures {
  std::vector<double> simulated, measured, ratios; ///< by turn
  std::vector<double> efficiencies; ///< by turn: the longest path, of the iteration that had it
  Parts simulated_parts, measured_parts; ///< sums over the turns
};

void add_parts(const ir::Timeline& timeline, double seconds, Parts& parts) {
  for (const ir::TimelineLane& lane : timeline.lanes) {
    const bool computes = std::any_of(lane.spans.begin(), lane.spans.end(),
                                      [](const auto& span) { return ir::goes_forward(span.op); });
    if (lane.device != timeline.lanes.front().device || !computes)
      continue;
    double idle = seconds;
    for (const ir::TimelineSpan& span : lane.spans) {
      parts[compiler::to_string(compiler::work_of(span.op))] += span.end - span.start;
      idle -= span.end - span.start;
    }
    parts["idle"] += idle;
  }
}

/// Measures calls and iterations in turn, a second or two of each: the machine's speed changes.
Result<Figures> take_turns(const SimulateBenchmark& benchmark, const ir::Strategy& strategy) {
  PIPER_TRY(const Model model, benchmark.model());
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy));
  SessionOptions options = benchmark.session;
  options.devices = static_cast<uint32_t>(compiled.plans.devices.size());
  Figures figures;
  const auto simulated = [&]() -> Result<double> {
    PIPER_TRY(const MeasuredCosts measured,
              measure_costs(model, options, rows_of(compiled.plans), benchmark.time, std::nullopt,
                            options.devices));
    PIPER_TRY(const auto simulation,
              compiler::simulate(compiled.plans, *model.spec, measured.costs, measured.cluster));
    add_parts(compiler::timeline_of(simulation, compiled.plans, model.spec.get()),
              simulation.makespan, figures.simulated_parts);
    return simulation.makespan;
  };
  PIPER_TRY(const auto session, Session::create(model, strategy, options));
  PIPER_CHECK_OK(session->run(benchmark.unmeasured));
  PIPER_TRY(double before, simulated());
  for (int64_t turn = 0; turn < benchmark.rounds; ++turn) {
    std::vector<double> seconds;
    PIPER_CHECK_OK(session->run(benchmark.iterations, [&](const StepResult& step) {
      seconds.push_back(step.seconds);
      return true;
    }));
    PIPER_TRY(const ir::Timeline timeline, session->timeline());
    add_parts(timeline, seconds.back(), figures.measured_parts);
    PIPER_TRY(const double path, compiler::longest_path(timeline, compiled.plans, *model.spec));
    figures.efficiencies.push_back(path / seconds.back());
    PIPER_TRY(const double after, simulated());
    figures.simulated.push_back((before + after) / 2);
    figures.measured.push_back(median(seconds));
    figures.ratios.push_back(figures.simulated.back() / figures.measured.back());
    before = after;
  }
  return figures;
}

} // namespace

Result<void> bench_simulate(const SimulateBenchmark& benchmark) {
  std::vector<Figures> all;
  Table table({"strategy", "simulated ms", "measured ms", "simulated / measured", "range",
               "longest path / measured"});
  for (size_t s = 0; s < benchmark.strategies.size(); ++s) {
    PIPER_TRY(const Figures figures, take_turns(benchmark, benchmark.strategies[s]));
    const auto [least, most] = std::minmax_element(figures.ratios.begin(), figures.ratios.end());
    table.row({benchmark.expressions[s], fmt::format("{:.1f}", 1e3 * median(figures.simulated)),
               fmt::format("{:.1f}", 1e3 * median(figures.measured)),
               fmt::format("{:.3f}", median(figures.ratios)),
               fmt::format("{:.3f}-{:.3f}", *least, *most),
               fmt::format("{:.3f}", median(figures.efficiencies))});
    all.push_back(figures);
  }
  std::fputs(table.to_string().c_str(), stdout);

  Table parts({"the first device's compute", "", "simulated ms", "measured ms"});
  for (size_t s = 0; s < all.size(); ++s)
    for (const auto& [part, seconds] : all[s].measured_parts)
      parts.row({benchmark.expressions[s], part,
                 fmt::format("{:.1f}", 1e3 * all[s].simulated_parts[part] /
                                           static_cast<double>(benchmark.rounds + 1)),
                 fmt::format("{:.1f}", 1e3 * seconds / static_cast<double>(benchmark.rounds))});
  fmt::print("\n{}", parts.to_string());
  return {};
}

} // namespace piper::cli
