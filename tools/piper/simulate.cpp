#include "compiler/compile.h"
#include "compiler/simulate/ablate.h"
#include "compiler/simulate/render.h"
#include "compiler/simulate/timeline.h"
#include "tools/piper/ablations.h"
#include "tools/piper/files.h"
#include "tools/piper/job.h"
#include "tools/piper/numbers.h"
#include "tools/piper/passes.h"
#include "tools/piper/table.h"
#include "tools/piper/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace piper::cli {

namespace {

using compiler::DeviceReport;
using compiler::format_seconds;
using compiler::Simulation;

constexpr size_t kShownDevices = 16;

struct SimulateFlags {
  Job job;
  Ablations ablations;
  std::string costs_file, cluster_file, collectives;
  std::string svg_file, trace_file, json_file;
  bool timeline = false, every_device = false, statistics = false;
  int width = 0;
};

/// What is simulated, and what it took to compile it.
struct Simulated {
  compiler::Compiled compiled;
  std::string costs; ///< where they come from
  compiler::Cluster cluster;
  Simulation simulation;
  double compile_seconds = 0, simulate_seconds = 0;
  int64_t compiler_bytes = 0; ///< by which compiling raised the program's peak
  int64_t peak_of_program = 0;
  double tokens = 0; ///< of an iteration
};

int64_t peak_of_program() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// `--cluster`, else the one in `--costs`, else the declared one.
Result<compiler::Cluster> read_cluster(const SimulateFlags& flags, const std::string& costs) {
  std::optional<compiler::Cluster> cluster;
  if (!flags.cluster_file.empty()) {
    PIPER_TRY(const std::string text, read_file(flags.cluster_file, "--cluster"));
    PIPER_TRY(cluster, compiler::Cluster::parse(text, flags.cluster_file));
  } else if (!costs.empty()) {
    PIPER_TRY(cluster, compiler::Cluster::parse(costs, flags.costs_file));
  }
  if (!cluster)
    cluster = compiler::declared_cluster();
  if (!flags.collectives.empty())
    cluster->collectives = *compiler::parse_algorithm(flags.collectives);
  return *std::move(cluster);
}

Result<Simulated> run_simulation(const SimulateFlags& flags, ir::Strategy strategy,
                                 const std::shared_ptr<const ir::ModelSpec>& spec) {
  const ir::ModelSpec& model = *spec;
  PIPER_TRY(strategy, flags.ablations.apply(model, std::move(strategy)));
  Simulated result;
  compiler::CompileOptions options;
  options.devices = flags.job.devices;
  options.measure_bytes = flags.statistics || !flags.json_file.empty();
  const int64_t before = peak_of_program();
  auto start = std::chrono::steady_clock::now();
  PIPER_TRY(result.compiled, compiler::compile(spec, strategy, options));
  result.compile_seconds = seconds_since(start);
  result.peak_of_program = peak_of_program();
  result.compiler_bytes = result.peak_of_program - before;
  if (flags.ablations.no_overlap)
    result.compiled.plans = compiler::without_overlap(std::move(result.compiled.plans));

  std::string text;
  compiler::CostModel costs = compiler::declared_costs(model);
  if (!flags.costs_file.empty()) {
    PIPER_TRY(text, read_file(flags.costs_file, "--costs"));
    PIPER_TRY(costs, compiler::CostModel::parse(text, model, flags.costs_file));
  }
  result.costs = costs.source;
  PIPER_TRY(result.cluster, read_cluster(flags, text));
  start = std::chrono::steady_clock::now();
  compiler::SimulateOptions how;
  how.every_device = flags.every_device;
  how.timeline = flags.timeline || !flags.svg_file.empty() || !flags.trace_file.empty();
  PIPER_TRY(result.simulation,
            compiler::simulate(result.compiled.plans, model, costs, result.cluster, how));
  result.simulate_seconds = seconds_since(start);
  if (!model.inputs.empty())
    result.tokens = static_cast<double>(model.value(model.inputs.front()).type.numel(model.batch));
  return result;
}

std::string percent(double part, double whole) {
  return fmt::format("{:.1f}%", whole > 0 ? 100 * part / whole : 0);
}

std::string name_of(const DeviceReport& device) {
  return device.count == 1 ? fmt::format("{}", device.device)
                           : fmt::format("{} +{}", device.device, device.count - 1);
}

void print_report(const Simulated& its, const std::string& strategy) {
  const Simulation& simulation = its.simulation;
  const double makespan = simulation.makespan;
  fmt::print("{} on {} devices\n", strategy, its.compiled.plans.devices.size());
  fmt::print("costs         {}\n", its.costs);
  fmt::print("iteration     {}\n", format_seconds(makespan));
  fmt::print("tokens/s      {:.0f}\n\n", makespan > 0 ? its.tokens / makespan : 0);

  Table table({"device", "busy", "bubble", "exposed", "bubble %", "exposed %", "sent", "peak"});
  const auto row = [&](const std::string& name, const DeviceReport& device) {
    table.row({name, format_seconds(device.busy), format_seconds(device.bubble),
               format_seconds(device.exposed), percent(device.bubble, makespan),
               percent(device.exposed, makespan), human_bytes(device.sent),
               human_bytes(static_cast<double>(device.peak))});
  };
  const auto& devices = simulation.devices;
  if (devices.size() <= kShownDevices) {
    for (const DeviceReport& device : devices)
      row(name_of(device), device);
  } else {
    const auto by = [&](auto member) {
      return
          [member](const DeviceReport& a, const DeviceReport& b) { return a.*member < b.*member; };
    };
    const auto add = [&](const char* what, const DeviceReport& device) {
      row(fmt::format("{} ({})", name_of(device), what), device);
    };
    add("first", devices.front());
    add("least busy", *std::min_element(devices.begin(), devices.end(), by(&DeviceReport::busy)));
    add("busiest", *std::max_element(devices.begin(), devices.end(), by(&DeviceReport::busy)));
    add("most exposed",
        *std::max_element(devices.begin(), devices.end(), by(&DeviceReport::exposed)));
    add("most memory", *std::max_element(devices.begin(), devices.end(), by(&DeviceReport::peak)));
    add("last", devices.back());
  }
  fmt::print("{}\n", table.to_string());

  const DeviceReport& fullest = *std::max_element(
      devices.begin(), devices.end(),
      [](const DeviceReport& a, const DeviceReport& b) { return a.peak < b.peak; });
  Table memory({fmt::format("memory of device {}", fullest.device), "at its peak"});
  for (size_t h = 0; h < compiler::kHoldings; ++h)
    memory.row({to_string(static_cast<compiler::Holding>(h)),
                human_bytes(static_cast<double>(fullest.at_peak[h]))});
  memory.row({"all", human_bytes(static_cast<double>(fullest.peak))});
  fmt::print("{}", memory.to_string());
  if (its.cluster.memory > 0 && fullest.peak > its.cluster.memory)
    fmt::print("DOES NOT FIT: a device has {}\n",
               human_bytes(static_cast<double>(its.cluster.memory)));

  fmt::print("\ncompiled in {} ({} more memory), simulated in {} as {} devices\n",
             format_seconds(its.compile_seconds),
             human_bytes(static_cast<double>(its.compiler_bytes)),
             format_seconds(its.simulate_seconds), devices.size());
}

std::string to_json(const Simulated& its, const std::string& strategy) {
  using Json = nlohmann::ordered_json;
  const Simulation& simulation = its.simulation;
  Json json{{"strategy", strategy},
            {"devices", its.compiled.plans.devices.size()},
            {"costs", its.costs},
            {"seconds", simulation.makespan},
            {"tokens_per_second", simulation.makespan > 0 ? its.tokens / simulation.makespan : 0}};
  Json& classes = json["classes"] = Json::array();
  for (const DeviceReport& device : simulation.devices) {
    Json held;
    for (size_t h = 0; h < compiler::kHoldings; ++h)
      held[to_string(static_cast<compiler::Holding>(h))] = device.at_peak[h];
    classes.push_back({{"device", device.device},
                       {"count", device.count},
                       {"busy", device.busy},
                       {"bubble", device.bubble},
                       {"exposed", device.exposed},
                       {"sent_bytes", device.sent},
                       {"peak_bytes", device.peak},
                       {"at_peak", held}});
  }
  Json passes = Json::array();
  for (const auto& pass : its.compiled.passes)
    passes.push_back({{"pass", pass.name},
                      {"seconds", pass.seconds},
                      {"nodes", pass.nodes},
                      {"bytes", pass.bytes}});
  json["compiler"] = {{"seconds", its.compile_seconds},
                      {"added_peak_bytes", its.compiler_bytes},
                      {"program_peak_bytes", its.peak_of_program},
                      {"passes", passes}};
  json["simulate_seconds"] = its.simulate_seconds;
  return json.dump(1) + "\n";
}

int terminal_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    return size.ws_col;
  return 120;
}

Result<void> run_simulate(const Registry& registry, CLI::App& verb, SimulateFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  PIPER_TRY(const Model model, flags.job.build_model(registry));
  PIPER_TRY(ir::Strategy strategy, flags.job.strategy());
  PIPER_TRY(strategy, flags.job.balance(model, std::move(strategy)));
  PIPER_TRY(const Simulated its, run_simulation(flags, strategy, model.spec));
  print_report(its, strategy.name);
  if (flags.statistics)
    fmt::print("\n{}", passes_table(its.compiled.passes));
  const ir::Timeline timeline =
      compiler::timeline_of(its.simulation, its.compiled.plans, model.spec.get());
  if (flags.timeline)
    fmt::print("\n{}", compiler::render_terminal(timeline,
                                                 flags.width > 0 ? flags.width : terminal_width()));
  if (!flags.svg_file.empty())
    PIPER_CHECK_OK(
        write_file(flags.svg_file, compiler::render_svg(timeline, strategy.name), "--svg"));
  if (!flags.trace_file.empty())
    PIPER_CHECK_OK(write_file(flags.trace_file, compiler::render_trace(timeline), "--trace"));
  if (!flags.json_file.empty())
    PIPER_CHECK_OK(write_file(flags.json_file, to_json(its, strategy.name), "--json"));
  return {};
}

} // namespace

void add_simulate(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand(
      "simulate", "Foretell time and memory of a strategy on declared or measured costs");
  auto flags = std::make_shared<SimulateFlags>();
  flags->job.add_model_flags(*verb);
  flags->job.add_strategy_flags(*verb);
  const auto option = [&](const char* flag, auto& target, const char* help, const char* group) {
    return verb->add_option(flag, target, help)->group(group);
  };
  option("--costs", flags->costs_file, "Cost file of `piper profile` (default: declared FLOPs)",
         "Machine");
  option("--cluster", flags->cluster_file,
         "JSON of devices and links (default: the cost file's, else nodes of 8 devices)",
         "Machine");
  option("--collective,--collectives", flags->collectives,
         "direct, ring, halving, hierarchical or auto (default: the cluster's)", "Machine")
      ->check(CLI::IsMember({"direct", "ring", "halving", "hierarchical", "auto"}));
  const auto flag = [&](const char* name, bool& target, const char* help, const char* group) {
    verb->add_flag(name, target, help)->group(group);
  };
  flags->ablations.add_flags(*verb);
  flag("--timeline", flags->timeline, "Draw what each stream does", "Output");
  option("--width", flags->width, "Columns of the timeline (default: the terminal's)", "Output")
      ->check(CLI::PositiveNumber);
  option("--svg", flags->svg_file, "Write the timeline here as SVG", "Output");
  option("--trace", flags->trace_file, "Write a trace here for chrome://tracing or ui.perfetto.dev",
         "Output");
  option("--json", flags->json_file, "Write all figures here", "Output");
  flag("--statistics", flags->statistics, "Time and nodes of each pass of the compiler", "Output");
  flag("--every-device", flags->every_device,
       "Simulate each device, also those that do the same as others", "Output");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_simulate(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

} // namespace piper::cli
