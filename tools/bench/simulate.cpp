#include "tools/bench/simulate.h"

#include "compiler/compile.h"
#include "compiler/simulate/simulate.h"
#include "tools/bench/costs.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace piper::cli {

namespace {

struct Figures {
  std::vector<double> simulated, measured, ratios; ///< by round
};

Result<void> run_round(const SimulateBenchmark& benchmark, const ir::Strategy& strategy,
                       Figures& figures) {
  PIPER_TRY(const Model model, benchmark.model());
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy));
  SessionOptions session = benchmark.session;
  session.devices = static_cast<uint32_t>(compiled.plans.devices.size());
  const auto simulated = [&]() -> Result<double> {
    PIPER_TRY(const MeasuredCosts measured,
              measure_costs(model, session, rows_to_measure(*model.spec, compiled.plans),
                            benchmark.time, std::nullopt, session.devices));
    PIPER_TRY(const auto simulation, compiler::simulate(compiled.plans, *model.spec, measured.costs,
                                                        measured.cluster, {.timeline = false}));
    return simulation.makespan + measured.costs.iteration;
  };
  PIPER_TRY(const double before, simulated());
  std::vector<double> seconds;
  {
    PIPER_TRY(const auto trained, Session::create(model, strategy, session));
    PIPER_CHECK_OK(trained->run(benchmark.iterations, [&](const StepResult& step) {
      if (step.iteration >= benchmark.unmeasured)
        seconds.push_back(step.seconds);
      return true;
    }));
  }
  PIPER_TRY(const double after, simulated()); // the machine's speed may have changed meanwhile
  figures.simulated.push_back((before + after) / 2);
  figures.measured.push_back(median(seconds));
  figures.ratios.push_back(figures.simulated.back() / figures.measured.back());
  return {};
}

} // namespace

Result<void> bench_simulate(const SimulateBenchmark& benchmark) {
  std::vector<Figures> figures(benchmark.strategies.size());
  for (int64_t round = 0; round < benchmark.rounds; ++round)
    for (size_t s = 0; s < figures.size(); ++s)
      PIPER_CHECK_OK(run_round(benchmark, benchmark.strategies[s], figures[s]));
  Table table({"strategy", "simulated ms", "measured ms", "simulated / measured", "range"});
  for (size_t s = 0; s < figures.size(); ++s) {
    const auto [least, most] =
        std::minmax_element(figures[s].ratios.begin(), figures[s].ratios.end());
    table.row({benchmark.expressions[s], fmt::format("{:.1f}", 1e3 * median(figures[s].simulated)),
               fmt::format("{:.1f}", 1e3 * median(figures[s].measured)),
               fmt::format("{:.3f}", median(figures[s].ratios)),
               fmt::format("{:.3f}-{:.3f}", *least, *most)});
  }
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
