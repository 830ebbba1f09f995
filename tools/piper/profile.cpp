#include "actors/executor/profile.h"
#include "compiler/compile.h"
#include "compiler/cost/cluster.h"
#include "compiler/cost/cost_model.h"
#include "tools/bench/transport.h"
#include "tools/piper/files.h"
#include "tools/piper/job.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"
#include "tools/piper/verbs.h"
#include "transport/loopback/fabric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <thread>

namespace piper::cli {

namespace {

using Rows = std::vector<transport::BenchRow>;

constexpr std::chrono::milliseconds kTimePerLinkRow{150};

struct ProfileFlags {
  Job job;
  std::string output;
  std::vector<int64_t> rows;
  int64_t milliseconds = 1500;
};

/// Of the microbatches of the strategy, and half and twice as many; of the batch without one.
Result<std::vector<int64_t>> choose_rows(const ProfileFlags& flags, const ir::ModelSpec& model,
                                         const ir::PlanSet& plans) {
  std::vector<int64_t> rows = flags.rows;
  for (int64_t each : rows)
    if (each > model.batch)
      return user_error(fmt::format("{} rows are more than the {} of the batch", each, model.batch),
                        "--rows");
  if (rows.empty())
    for (size_t g = 0; g < plans.groups.size(); ++g) {
      const int64_t its = plans.rows(ir::GroupId(g));
      rows.insert(rows.end(), {std::max<int64_t>(1, its / 2), its, std::min(model.batch, 2 * its)});
    }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

Result<Rows> measure_loopback() {
  constexpr ir::DeviceIndex kDevices[] = {0, 1};
  constexpr size_t kSizes[] = {8, 8 << 20};
  transport::LoopbackFabric fabric(kDevices);
  std::optional<Result<Rows>> other;
  std::thread second([&] {
    other = transport::run_transport_bench_rank(fabric.endpoint(1), kSizes, kTimePerLinkRow);
  });
  auto rows = transport::run_transport_bench_rank(fabric.endpoint(0), kSizes, kTimePerLinkRow);
  second.join();
  return rows;
}

double seconds_of(const Rows& rows, std::string_view op, bool largest) {
  double seconds = 0;
  size_t bytes = 0;
  for (const auto& row : rows)
    if (row.op == op && (bytes == 0 || (row.bytes > bytes) == largest)) {
      bytes = row.bytes;
      seconds = row.median_seconds;
    }
  return seconds;
}

/// Within a process a message hands over its tensor, so the bandwidth is that of collectives: what
/// they take beyond latency and sums.
compiler::Level level_within(const Rows& rows, double add) {
  compiler::Level level{.name = "process"};
  level.latency = seconds_of(rows, "ping_pong", false);
  level.hands_over = true;
  const auto bytes = static_cast<double>(
      std::max_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
        return a.bytes < b.bytes;
      })->bytes);
  const double moving = seconds_of(rows, "all_reduce", true) - 2 * level.latency - bytes / 2 * add;
  level.bandwidth = moving > 0 ? bytes / moving : 0;
  return level;
}

compiler::Level level_between(const Rows& rows) {
  compiler::Level level{.name = "machine"};
  level.latency = seconds_of(rows, "ping_pong", false);
  for (const auto& row : rows)
    if (row.op == "stream")
      level.bandwidth =
          std::max(level.bandwidth, static_cast<double>(row.bytes) / row.median_seconds);
  return level;
}

compiler::CostModel to_costs(const executor::Profile& profile, const ir::ModelSpec& model,
                             const executor::OptimizerSpec& optimizer) {
  compiler::CostModel costs;
  costs.forward_chunk = profile.forward_chunk;
  costs.backward_chunk = profile.backward_chunk;
  costs.instruction = profile.instruction;
  costs.iteration = profile.iteration;
  costs.update = profile.update;
  costs.add = profile.add;
  costs.copy = profile.copy;
  costs.moments = 0;
  for (ir::StateKind kind : optimizer.state())
    costs.moments += kind == ir::StateKind::Moment1 || kind == ir::StateKind::Moment2;
  for (size_t c = 0; c < model.calls.size(); ++c) {
    const executor::CallProfile& its = profile.calls[c];
    const auto line = [&](auto figure) {
      std::vector<std::pair<int64_t, double>> samples;
      for (const executor::CallSample& sample : its.samples)
        samples.emplace_back(sample.rows, static_cast<double>(sample.*figure));
      return compiler::fit(samples);
    };
    compiler::CallCost cost;
    cost.forward = line(&executor::CallSample::forward);
    cost.backward = line(&executor::CallSample::backward);
    cost.backward_input = line(&executor::CallSample::backward_input);
    cost.backward_weight = line(&executor::CallSample::backward_weight);
    cost.saved = line(&executor::CallSample::saved);
    cost.deferred = line(&executor::CallSample::deferred);
    cost.forward_peak = line(&executor::CallSample::forward_peak);
    cost.backward_peak = line(&executor::CallSample::backward_peak);
    cost.keeps = its.keeps;
    costs.calls.push_back(std::move(cost));
  }
  return costs;
}

void print_costs(const executor::Profile& profile, const ir::ModelSpec& model) {
  Table table({"call", "rows", "F us", "B us", "BI us", "BW us", "saved", "F peak", "B peak"});
  const auto bytes = [](int64_t count) { return human_bytes(static_cast<double>(count)); };
  for (size_t c = 0; c < model.calls.size(); ++c)
    for (const executor::CallSample& sample : profile.calls[c].samples)
      table.row({model.calls[c].name, std::to_string(sample.rows),
                 fmt::format("{:.1f}", sample.forward * 1e6),
                 fmt::format("{:.1f}", sample.backward * 1e6),
                 fmt::format("{:.1f}", sample.backward_input * 1e6),
                 fmt::format("{:.1f}", sample.backward_weight * 1e6), bytes(sample.saved),
                 bytes(sample.forward_peak), bytes(sample.backward_peak)});
  fmt::print("{}", table.to_string());
}

Result<void> run_profile(const Registry& registry, CLI::App& verb, ProfileFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  std::optional<Rows> between;
  if (flags.job.processes > 1) { // first of all, because it forks
    PIPER_TRY(between, measure_transport(transport::UcxMode::SharedMemory, kTimePerLinkRow));
  }
  PIPER_TRY(const Model model, flags.job.build_model(registry));
  PIPER_TRY(ir::Strategy strategy, flags.job.strategy());
  PIPER_TRY(strategy, flags.job.balance(model, std::move(strategy)));
  compiler::CompileOptions compile_options;
  compile_options.devices = flags.job.devices;
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy, compile_options));
  PIPER_CHECK_OK(flags.job.settle_devices(model, {strategy}));
  PIPER_TRY(const SessionOptions session, flags.job.session_options());

  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  executor::ProfileOptions options;
  PIPER_TRY(options.rows, choose_rows(flags, *model.spec, compiled.plans));
  options.threads = session.threads_per_device;
  options.devices =
      std::clamp(static_cast<int>(session.devices), 1, std::max(1, cores / options.threads));
  options.seed = session.seed;
  options.optimizer = session.optimizer;
  options.time = std::chrono::milliseconds(flags.milliseconds);
  PIPER_TRY(const executor::Profile profile, executor::profile_model(model, options));
  compiler::CostModel costs = to_costs(profile, *model.spec, session.optimizer);
  costs.source = fmt::format("measured with {} rows, {} threads a device, {} devices side by side",
                             fmt::join(options.rows, ", "), options.threads, options.devices);

  PIPER_TRY(const Rows within, measure_loopback());
  compiler::Cluster cluster;
  cluster.levels = {level_within(within, costs.add)};
  if (between) {
    cluster.levels[0].devices = std::max(1u, session.devices / flags.job.processes);
    cluster.levels.push_back(level_between(*between));
  }
  cluster.levels.back().cores = static_cast<double>(cores) / options.threads;

  using Json = nlohmann::ordered_json;
  Json json = Json::parse(costs.to_json(*model.spec));
  json["cluster"] = Json::parse(cluster.to_json());
  PIPER_CHECK_OK(write_file(flags.output, json.dump(1) + "\n", "--output"));
  print_costs(profile, *model.spec);
  return {};
}

} // namespace

void add_profile(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand(
      "profile", "Measure what the calls and links of a job cost here, for simulate");
  auto flags = std::make_shared<ProfileFlags>();
  flags->job.add_model_flags(*verb);
  flags->job.add_strategy_flags(*verb);
  flags->job.add_session_flags(*verb);
  verb->add_option("-o,--output", flags->output, "The cost file")->required()->group("Profile");
  verb->add_option("--rows", flags->rows,
                   "Rows of a microbatch to measure (default: the strategy's, half and twice)")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->group("Profile");
  verb->add_option("--time", flags->milliseconds, "Milliseconds for each number of rows, about")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group("Profile");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_profile(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

} // namespace piper::cli
