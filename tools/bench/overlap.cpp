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

/// A job that is trained for some iterations whenever it is its turn. Jobs that wait cost nothing.
class Contender {
public:
  static Result<Contender> start(const OverlapBenchmark& benchmark, const SessionOptions& options) {
    PIPER_TRY(Model model, benchmark.model());
    Contender made;
    PIPER_TRY(made.session_, Session::create(std::move(model), benchmark.strategy, options));
    PIPER_CHECK_OK(made.session_->run(benchmark.warmup));
    return made;
  }
  Result<void> turn(int64_t iterations) {
    return session_->run(iterations, [&](const StepResult& step) {
      seconds_.push_back(step.seconds);
      return true;
    });
  }
  double seconds() const { return median(seconds_); }
  /// Bytes of the busiest sender in an iteration.
  double sent() const {
    double most = 0;
    const Metrics metrics = session_->metrics();
    for (const DeviceReport& device : metrics.devices)
      most = std::max(most, static_cast<double>(device.bytes_sent));
    return most / static_cast<double>(metrics.iterations);
  }

private:
  std::unique_ptr<Session> session_;
  std::vector<double> seconds_; ///< of iterations
};

/// The machine's speed changes within seconds: each gets its share of every moment.
Result<void> take_turns(const OverlapBenchmark& benchmark, std::vector<Contender*> contenders,
                        int64_t rounds) {
  for (int64_t round = 0; round < rounds; ++round)
    for (Contender* each : contenders)
      PIPER_CHECK_OK(each->turn(benchmark.iterations));
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
    return simulation.makespan;
  };

  PIPER_TRY(Contender alone, Contender::start(benchmark, benchmark.session));
  PIPER_CHECK_OK(take_turns(benchmark, {&alone}, 1));
  const double sent = alone.sent();
  if (sent == 0)
    return user_error("its devices send nothing", "--strategy");

  // What is sent may not go out evenly, so that the link is set by what it costs, not by bytes.
  SessionOptions in_turn = benchmark.session;
  in_turn.overlap = false;
  in_turn.link.bandwidth = sent / (benchmark.share * alone.seconds());
  for (int correction = 0; correction < 2; ++correction) {
    PIPER_TRY(Contender attempt, Contender::start(benchmark, in_turn));
    PIPER_CHECK_OK(take_turns(benchmark, {&alone, &attempt}, 3));
    if (const double communicating = attempt.seconds() - alone.seconds(); communicating > 0)
      in_turn.link.bandwidth *= communicating / (benchmark.share * alone.seconds());
  }
  SessionOptions slow = in_turn;
  slow.overlap = true;
  PIPER_TRY(Contender with, Contender::start(benchmark, slow));
  PIPER_TRY(Contender without, Contender::start(benchmark, in_turn));
  PIPER_CHECK_OK(take_turns(benchmark, {&alone, &with, &without}, benchmark.rounds));
  const double computing = alone.seconds(), exposed = without.seconds(),
               hidden = exposed - with.seconds();

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
  table.row({"over the link, with overlap", milliseconds(with.seconds())});
  table.row({"as the DAG allows", milliseconds(allowed)});
  std::fputs(table.to_string().c_str(), stdout);
  fmt::print("\n{} sent by a device over {}/s, {}/s as simulated; ", human_bytes(sent),
             human_bytes(slow.link.bandwidth), human_bytes(bandwidth));
  if (exposed > allowed)
    fmt::print("{:.0f}% hidden of what the DAG allows\n", 100 * hidden / (exposed - allowed));
  else
    fmt::print("the DAG allows nothing to be hidden\n");
  return {};
}

} // namespace piper::cli
