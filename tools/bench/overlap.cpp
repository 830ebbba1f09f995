#include "tools/bench/overlap.h"

#include "compiler/compile.h"
#include "compiler/simulate/ablate.h"
#include "compiler/simulate/simulate.h"
#include "tools/bench/costs.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace piper::cli {

namespace {

struct Figures {
  std::vector<double> seconds; ///< of iterations
  double sent = 0;             ///< bytes of the busiest sender in an iteration
};

Result<void> train(const OverlapBenchmark& benchmark, const SessionOptions& options,
                   Figures& figures) {
  PIPER_TRY(Model model, benchmark.model());
  PIPER_TRY(const auto session, Session::create(std::move(model), benchmark.strategy, options));
  PIPER_CHECK_OK(session->run(benchmark.iterations, [&](const StepResult& step) {
    if (step.iteration >= benchmark.warmup)
      figures.seconds.push_back(step.seconds);
    return true;
  }));
  for (const DeviceReport& device : session->metrics().devices)
    figures.sent = std::max(figures.sent, static_cast<double>(device.bytes_sent) /
                                              static_cast<double>(benchmark.iterations));
  return {};
}

/// The bandwidth with which the simulator takes `seconds` too; `simulated` takes longer with less.
Result<double> fitting_bandwidth(const std::function<Result<double>(double)>& simulated,
                                 double seconds, double guess) {
  double low = guess / 64, high = guess * 64;
  for (int step = 0; step < 40; ++step) {
    const double middle = std::sqrt(low * high);
    PIPER_TRY(const double its, simulated(middle));
    (its > seconds ? low : high) = middle;
  }
  return std::sqrt(low * high);
}

} // namespace

Result<void> bench_overlap(const OverlapBenchmark& benchmark) {
  PIPER_TRY(const Model model, benchmark.model());
  compiler::CompileOptions options;
  options.devices = benchmark.session.devices;
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, benchmark.strategy, options));
  PIPER_TRY(const MeasuredCosts measured,
            measure_costs(model, benchmark.session, rows_to_measure(*model.spec, compiled.plans),
                          benchmark.time, std::nullopt, benchmark.session.devices));
  const auto simulated = [&](const ir::PlanSet& plans,
                             const compiler::Cluster& cluster) -> Result<double> {
    PIPER_TRY(const auto simulation,
              compiler::simulate(plans, *model.spec, measured.costs, cluster, {.timeline = false}));
    return simulation.makespan + measured.costs.iteration / cluster.speed;
  };

  Figures alone;
  for (int64_t round = 0; round < benchmark.rounds; ++round)
    PIPER_CHECK_OK(train(benchmark, benchmark.session, alone));
  const double computing = median(alone.seconds);
  if (alone.sent == 0)
    return user_error("its devices send nothing", "--strategy");

  // What is sent may not go out evenly, so that the link is set by what it costs, not by bytes.
  const double wanted = benchmark.share * computing;
  SessionOptions in_turn = benchmark.session;
  in_turn.overlap = false;
  in_turn.link.bandwidth = alone.sent / wanted;
  for (int correction = 0; correction < 2; ++correction) {
    Figures first;
    PIPER_CHECK_OK(train(benchmark, in_turn, first));
    if (const double communicating = median(first.seconds) - computing; communicating > 0)
      in_turn.link.bandwidth *= communicating / wanted;
  }
  SessionOptions slow = in_turn;
  slow.overlap = true;
  Figures with, without;
  for (int64_t round = 0; round < benchmark.rounds; ++round) {
    PIPER_CHECK_OK(train(benchmark, slow, with));
    PIPER_CHECK_OK(train(benchmark, in_turn, without));
  }
  const double exposed = median(without.seconds), hidden = exposed - median(with.seconds);

  PIPER_TRY(const double foretold, simulated(compiled.plans, measured.cluster));
  compiler::Cluster throttled = measured.cluster;
  throttled.speed *= foretold / computing;
  const ir::PlanSet turns = compiler::without_overlap(compiled.plans);
  const auto over = [&](const ir::PlanSet& plans, double bandwidth) {
    for (compiler::Level& level : throttled.levels) {
      level.hands_over = false;
      level.bandwidth = bandwidth;
    }
    return simulated(plans, throttled);
  };
  PIPER_TRY(const double bandwidth,
            fitting_bandwidth([&](double guess) { return over(turns, guess); }, exposed,
                              slow.link.bandwidth));
  PIPER_TRY(const double allowed, over(compiled.plans, bandwidth));

  const auto milliseconds = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
  Table table({"an iteration", "ms"});
  table.row({"without a link", milliseconds(computing)});
  table.row({"the same simulated", milliseconds(foretold)});
  table.row({"over the link, without overlap", milliseconds(exposed)});
  table.row({"over the link, with overlap", milliseconds(median(with.seconds))});
  table.row({"as the DAG allows", milliseconds(allowed)});
  std::fputs(table.to_string().c_str(), stdout);
  fmt::print("\n{} sent by a device over {}/s, {}/s as simulated; ", human_bytes(alone.sent),
             human_bytes(slow.link.bandwidth), human_bytes(bandwidth));
  if (exposed > allowed)
    fmt::print("{:.0f}% hidden of what the DAG allows\n", 100 * hidden / (exposed - allowed));
  else
    fmt::print("the DAG allows nothing to be hidden\n");
  return {};
}

} // namespace piper::cli
