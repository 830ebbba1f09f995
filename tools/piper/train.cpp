#include "compiler/simulate/render.h"
#include "tools/piper/ablations.h"
#include "tools/piper/console.h"
#include "tools/piper/files.h"
#include "tools/piper/job.h"
#include "tools/piper/processes.h"
#include "tools/piper/report.h"
#include "tools/piper/verbs.h"
#include "tools/piper/workers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <future>

namespace piper::cli {

namespace {

volatile std::sig_atomic_t interrupted = 0;

/// Turns the first SIGINT or SIGTERM into a request to end after the iteration; a second one does
/// what it always did.
class Interruptible {
public:
  Interruptible() {
    interrupted = 0;
    struct sigaction action = {};
    action.sa_handler = [](int) { interrupted = 1; };
    action.sa_flags = SA_RESETHAND;
    sigaction(SIGINT, &action, &old_int_);
    sigaction(SIGTERM, &action, &old_term_);
  }
  ~Interruptible() {
    sigaction(SIGINT, &old_int_, nullptr);
    sigaction(SIGTERM, &old_term_, nullptr);
  }

private:
  struct sigaction old_int_ = {}, old_term_ = {};
};

struct PlannedChange {
  int64_t iteration = 0;
  ir::Strategy strategy;
};

/// "20=1f1b:4", "20=pipeline.json"
Result<PlannedChange> parse_change(const Job& job, const std::string& text) {
  const auto sign = text.find('=');
  PlannedChange change;
  const char* end = text.data() + (sign == std::string::npos ? 0 : sign);
  if (sign == std::string::npos || sign == 0 ||
      std::from_chars(text.data(), end, change.iteration).ptr != end || change.iteration < 1)
    return user_error(fmt::format("\"{}\" is not ITER=STRATEGY", text), "--at",
                      "write for example --at 20=1f1b:4, with an iteration from 1 on");
  PIPER_TRY(change.strategy, job.other_strategy(text.substr(sign + 1), "--at"));
  return change;
}

struct TrainFlags {
  Job job;
  Ablations ablations;
  std::string collective;
  int64_t iterations = 10;
  std::vector<std::string> at;
  std::string report_file, trace_file, svg_file, control;
  bool verbose = false;
};

using PendingChange = std::future<Result<Change>>;

/// Trains; what was done until an error is in the report all the same. A change whose iteration was
/// not reached stays in `pending`, which has to outlive the session: only its end answers it.
Result<void> train(Session& session, const TrainFlags& flags,
                   const std::vector<PlannedChange>& changes, Console& console, Report& report,
                   PendingChange& pending) {
  Metrics at_rest; ///< between two legs
  int64_t leg_begin = 0, done = 0;
  std::optional<uint32_t> epoch;
  const auto on_step = [&](const StepResult& step) {
    if (epoch && *epoch != step.epoch)
      report.end_epoch(step.iteration == leg_begin ? at_rest : session.metrics());
    epoch = step.epoch;
    done = step.iteration + 1;
    report.add(step);
    console.progress(step, flags.iterations);
    return interrupted == 0;
  };

  std::optional<Error> failed_change;
  for (size_t i = 0; i <= changes.size(); ++i) {
    const bool last = i == changes.size();
    const int64_t leg_end = last ? flags.iterations : changes[i].iteration;
    // The change is compiled and prepared beside this leg, and waits for its end.
    if (!last)
      pending = std::async(std::launch::async, [&session, planned = changes[i]] {
        return session.apply(planned.strategy, planned.iteration);
      });
    PIPER_CHECK_OK(session.run(leg_end - leg_begin, on_step));
    at_rest = session.metrics();
    leg_begin = leg_end;
    if (last || done < leg_end) // the latter: somebody asked us to stop
      break;
    if (const auto applied = pending.get(); applied.ok()) {
      console.line(
          fmt::format("{} -> {} at iteration {}", applied->from, applied->to, applied->iteration));
    } else { // the old plan goes on; the exit code will tell
      console.line(fmt::format("the change at iteration {} failed: {}", leg_end,
                               applied.error().to_string()));
      failed_change = applied.error();
    }
  }
  PIPER_TRY(std::string digest, session.parameters_digest());
  report.set_digest(std::move(digest));
  if (!flags.trace_file.empty() || !flags.svg_file.empty()) {
    PIPER_TRY(const ir::Timeline timeline, session.timeline());
    if (!flags.trace_file.empty())
      PIPER_CHECK_OK(write_file(flags.trace_file, compiler::render_trace(timeline), "--trace"));
    if (!flags.svg_file.empty())
      PIPER_CHECK_OK(write_file(
          flags.svg_file, compiler::render_svg(timeline, session.metrics().strategy), "--svg"));
  }
  if (failed_change)
    return *failed_change;
  return {};
}

Result<void> run_train(const Registry& registry, CLI::App& verb, TrainFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  PIPER_TRY(Model model, flags.job.build_model(registry));
  PIPER_CHECK_OK(check_collective(flags.collective));
  PIPER_TRY(ir::Strategy strategy, flags.job.strategy());
  PIPER_TRY(strategy, flags.job.balance(model, std::move(strategy)));
  PIPER_TRY(strategy, flags.ablations.apply(*model.spec, std::move(strategy)));
  std::vector<PlannedChange> changes;
  for (const auto& text : flags.at) {
    PIPER_TRY(PlannedChange change, parse_change(flags.job, text));
    PIPER_TRY(change.strategy, flags.job.balance(model, std::move(change.strategy)));
    PIPER_TRY(change.strategy, flags.ablations.apply(*model.spec, std::move(change.strategy)));
    if (change.iteration >= flags.iterations)
      return user_error(fmt::format("iteration {} of \"{}\" is not reached in {} iterations",
                                    change.iteration, text, flags.iterations),
                        "--at");
    changes.push_back(std::move(change));
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const auto& a, const auto& b) { return a.iteration < b.iteration; });

  // A strategy that does not fit the model is told now and not at iteration 1000.
  std::vector<ir::Strategy> all{strategy};
  for (const auto& change : changes)
    all.push_back(change.strategy);
  PIPER_CHECK_OK(flags.job.settle_devices(model, all));
  PIPER_TRY(SessionOptions options, flags.job.session_options());
  options.control = flags.control;
  options.overlap = !flags.ablations.no_overlap;

  Console console(flags.verbose);
  options.log = console.log_sink();
  Interruptible interruptible;
  PendingChange pending;
  Processes workers; // outlives the session, which says goodbye to them
  start_workers(flags.job.processes, options, workers);
  PIPER_TRY(const auto session, Session::create(std::move(model), std::move(strategy), options));
  if (!flags.control.empty())
    console.line(fmt::format("control at {}", session->control_address()));

  Report report;
  const auto trained = train(*session, flags, changes, console, report, pending);
  report.end_epoch(session->metrics());
  if (!trained.ok())
    report.set_error(trained.error());
  if (!flags.report_file.empty())
    PIPER_CHECK_OK(report.write(flags.report_file));
  console.line("\n" + report.to_table());
  return trained;
}

} // namespace

void add_train(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand("train", "Train a model under a strategy");
  auto flags = std::make_shared<TrainFlags>();
  flags->job.add_model_flags(*verb);
  flags->job.add_strategy_flags(*verb);
  flags->job.add_session_flags(*verb);
  flags->ablations.add_flags(*verb);
  add_collective_flag(*verb, flags->collective);
  verb->add_option("--at", flags->at,
                   "ITER=STRATEGY: change the strategy right before this iteration; repeatable")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false)
      ->group("Strategy");
  verb->add_option("--iters", flags->iterations, "Iterations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  verb->add_option("--report", flags->report_file, "Write what was done here, as JSON");
  verb->add_option("--trace", flags->trace_file,
                   "Write here what each device did in the last iteration, for chrome://tracing or "
                   "ui.perfetto.dev");
  verb->add_option("--svg", flags->svg_file, "The same as a picture");
  verb->add_option("--control", flags->control, "HOST:PORT at which `piper ctl` is answered");
  verb->add_flag("--verbose", flags->verbose, "Show the whole log");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_train(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

} // namespace piper::cli
