#include "tools/bench/overlap.h"

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

} // namespace

Result<void> bench_overlap(const OverlapBenchmark& benchmark) {
  PIPER_TRY(const Model model, benchmark.model());
  compiler::CompileOptions options;
  options.devices = benchmark.session.devices;
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, benchmark.strategy, options));
  PIPER_TRY(const MeasuredCosts measured,
            measure_costs(model, benchmark.session, rows_to_measure(*model.spec, compiled.plans),
                          benchmark.time, std::nullopt, benchmark.session.devices));
  const auto simulated = [&](const compiler::Cluster& cluster) -> Result<double> {
    PIPER_TRY(const auto simulation, compiler::simulate(compiled.plans, *model.spec, measured.costs,
                                                        cluster, {.timeline = false}));
    return simulation.makespan + measured.costs.iteration / cluster.speed;
  };

  Figures alone;
  for (int64_t round = 0; round < benchmark.rounds; ++round)
    PIPER_CHECK_OK(train(benchmark, benchmark.session, alone));
  const double computing = median(alone.seconds);
  if (alone.sent == 0)
    return user_error("its devices send nothing", "--strategy");

  SessionOptions slow = benchmark.session;
  slow.link.bandwidth = alone.sent / (benchmark.share * computing);
  SessionOptions in_turn = slow;
  in_turn.overlap = false;
  Figures with, without;
  for (int64_t round = 0; round < benchmark.rounds; ++round) {
    PIPER_CHECK_OK(train(benchmark, slow, with));
    PIPER_CHECK_OK(train(benchmark, in_turn, without));
  }

  PIPER_TRY(const double foretold, simulated(measured.cluster));
  compiler::Cluster throttled = measured.cluster;
  throttled.speed *= foretold / computing;
  for (compiler::Level& level : throttled.levels) {
    level.hands_over = false;
    level.bandwidth = slow.link.bandwidth;
  }
  PIPER_TRY(const double allowed, simulated(throttled));

  const auto milliseconds = [](double seconds) { return fmt::format("{:.1f}", 1e3 * seconds); };
  const double exposed = median(without.seconds), hidden = exposed - median(with.seconds);
  Table table({"an iteration", "ms"});
  table.row({"without a link", milliseconds(computing)});
  table.row({"the same simulated", milliseconds(foretold)});
  table.row({"over the link, without overlap", milliseconds(exposed)});
  table.row({"over the link, with overlap", milliseconds(median(with.seconds))});
  table.row({"as the DAG allows", milliseconds(allowed)});
  std::fputs(table.to_string().c_str(), stdout);
  fmt::print("\n{} sent by a device over {}/s; ", human_bytes(alone.sent),
             human_bytes(slow.link.bandwidth));
  if (exposed > allowed)
    fmt::print("{:.0f}% hidden of what the DAG allows\n", 100 * hidden / (exposed - allowed));
  else
    fmt::print("the DAG allows nothing to be hidden\n");
  return {};
}

} // namespace piper::cli
