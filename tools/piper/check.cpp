#include "compiler/compile.h"
#include "tools/piper/console.h"
#include "tools/piper/job.h"
#include "tools/piper/table.h"
#include "tools/piper/verbs.h"
#include "tools/piper/workers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>

namespace piper::cli {

namespace {

/// What another order of the same float64 sums may change.
constexpr double kTolerance = 1e-12;
/// AdamW divides a gradient by its own size. Where that is nearly nothing but rounding (the bias of
/// attention's keys has no gradient at all), the usual 1e-8 would show the rounding as large as a
/// step; this shows it as small as it is.
constexpr double kAdamEpsilon = 1e-4;

struct CheckFlags {
  Job job;
  int64_t iterations = 5;
  std::string report_file;
  bool verbose = false;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

struct Comparison {
  double worst_loss = 0;      ///< largest relative difference of a loss
  double worst_parameter = 0; ///< of a parameter: largest difference over its largest element
  std::string worst_name;
  bool bitwise = true;

  double worst() const { return std::max(worst_loss, worst_parameter); }
};

Result<Trained> train(Model model, ir::Strategy strategy, uint32_t processes,
                      SessionOptions options, int64_t iterations) {
  options.optimizer.eps = kAdamEpsilon;
  Processes workers;
  start_workers(processes, options, workers);
  PIPER_TRY(const auto session, Session::create(std::move(model), std::move(strategy), options));
  Trained trained;
  PIPER_CHECK_OK(session->run(iterations, [&](const StepResult& step) {
    trained.losses.push_back(step.loss);
    return true;
  }));
  PIPER_TRY(trained.parameters, session->parameters());
  return trained;
}

/// NaN counts as infinitely far from everything.
double finite_or_infinite(double difference) {
  return std::isnan(difference) ? INFINITY : difference;
}

Result<Comparison> compare(const Trained& reference, const Trained& tested) {
  Comparison result;
  if (tested.losses.size() != reference.losses.size() ||
      tested.parameters.size() != reference.parameters.size())
    return internal_error(fmt::format("{} losses and {} parameters against {} and {}",
                                      tested.losses.size(), tested.parameters.size(),
                                      reference.losses.size(), reference.parameters.size()));
  for (size_t i = 0; i < reference.losses.size(); ++i) {
    const double expected = reference.losses[i];
    result.bitwise = result.bitwise && tested.losses[i] == expected;
    result.worst_loss =
        std::max(result.worst_loss, finite_or_infinite(std::abs(tested.losses[i] / expected - 1)));
  }
  for (const auto& [name, expected] : reference.parameters) {
    const auto found = tested.parameters.find(name);
    if (found == tested.parameters.end() || found->second.sizes() != expected.sizes())
      return internal_error(fmt::format("parameter {} is missing or has another shape", name));
    if (at::equal(found->second, expected))
      continue;
    result.bitwise = false;
    const double scale = at::max(at::abs(expected)).item<double>();
    const double difference =
        finite_or_infinite(at::max(at::abs(found->second - expected)).item<double>() / scale);
    if (difference > result.worst_parameter) {
      result.worst_parameter = difference;
      result.worst_name = name;
    }
  }
  return result;
}

/// One device that adds up the same shares of the batch: as many microbatches as the strategy's
/// microbatches and replicas make together.
Result<ir::Strategy> reference_strategy(const Model& model, const ir::Strategy& strategy,
                                        uint32_t devices) {
  compiler::CompileOptions options;
  options.devices = devices;
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy, options));
  size_t replicas = 1;
  for (const auto& group : compiled.plans.groups)
    if (group.replicated)
      replicas = std::max(replicas, group.devices.size());
  const int64_t shares = compiled.plans.microbatches * static_cast<int64_t>(replicas);
  ir::Strategy single;
  single.name = "single";
  single.schedule("single", shares);
  return single;
}

Result<Comparison> run_check(const Registry& registry, CLI::App& verb, CheckFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  flags.job.set_model_key("dtype", "float64");
  PIPER_TRY(Model model, flags.job.build_model(registry));
  PIPER_TRY(ir::Strategy strategy, flags.job.strategy());
  PIPER_TRY(strategy, flags.job.balance(model, std::move(strategy)));
  PIPER_CHECK_OK(flags.job.settle_devices(model, {strategy}));
  PIPER_TRY(SessionOptions options, flags.job.session_options());
  PIPER_TRY(ir::Strategy single, reference_strategy(model, strategy, options.devices));

  Console console(flags.verbose);
  options.log = console.log_sink();
  SessionOptions alone = options;
  alone.devices = 1;
  alone.workers = 0;
  alone.memory_cap = 0;
  alone.transport = TransportKind::Auto;
  PIPER_TRY(const Trained reference, train(model, single, 1, alone, flags.iterations));
  PIPER_TRY(const Trained tested,
            train(model, strategy, flags.job.processes, options, flags.iterations));
  PIPER_TRY(const Comparison result, compare(reference, tested));

  Table table({"iteration", "one device", strategy.name, "difference"});
  for (size_t i = 0; i < reference.losses.size(); ++i)
    table.row({std::to_string(i), fmt::format("{:.15g}", reference.losses[i]),
               fmt::format("{:.15g}", tested.losses[i]),
               fmt::format("{:.1e}", tested.losses[i] - reference.losses[i])});
  console.line(table.to_string());
  console.line(fmt::format(
      "{}: largest relative difference {:.1e} of a loss, {:.1e} of {} parameters{}",
      result.worst() <= kTolerance ? (result.bitwise ? "bitwise equal" : "equal") : "DIFFERENT",
      result.worst_loss, result.worst_parameter, reference.parameters.size(),
      result.worst_name.empty() ? "" : fmt::format(" ({})", result.worst_name)));
  return result;
}

} // namespace

void add_check(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand(
      "check", "Compare a strategy with one device, in float64; exit 1 on a difference");
  auto flags = std::make_shared<CheckFlags>();
  flags->job.add_model_flags(*verb);
  flags->job.add_strategy_flags(*verb);
  flags->job.add_session_flags(*verb);
  verb->add_option("--iters", flags->iterations, "Iterations")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Training");
  verb->add_option("--report", flags->report_file, "Write the verdict here, as JSON");
  verb->add_flag("--verbose", flags->verbose, "Show the whole log");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_check(registry, *verb, *flags);
    if (!result.ok()) {
      exit_code = fail(result.error());
      return;
    }
    exit_code = result->worst() <= kTolerance ? kDone : kFailed;
    if (flags->report_file.empty())
      return;
    std::ofstream file(flags->report_file);
    file << nlohmann::json{{"bitwise", result->bitwise},
                           {"loss_difference", result->worst_loss},
                           {"parameter_difference", result->worst_parameter},
                           {"worst_parameter", result->worst_name},
                           {"tolerance", kTolerance}}
                .dump(1)
         << "\n";
    file.close();
    if (!file)
      exit_code = fail(user_error("cannot write " + flags->report_file, "--report"));
  });
}

} // namespace piper::cli
