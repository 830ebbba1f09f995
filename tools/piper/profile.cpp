#include "compiler/compile.h"
#include "tools/bench/costs.h"
#include "tools/bench/transport.h"
#include "tools/piper/files.h"
#include "tools/piper/job.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"
#include "tools/piper/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace piper::cli {

namespace {

struct ProfileFlags {
  Job job;
  std::string output;
  std::vector<int64_t> rows;
  int64_t milliseconds = 1500;
};

void print_costs(const executor::Profile& profile, const ir::ModelSpec& model) {
  Table table({"call", "rows", "F us", "B us", "BI us", "BW us", "saved", "F peak", "B peak"});
  const auto bytes = [](int64_t count) { return human_bytes(static_cast<double>(count)); };
  for (size_t c = 0; c < model.calls.size(); ++c) {
    const ir::CallMemory& memory = model.calls[c].memory;
    for (const executor::CallSample& sample : profile.calls[c].samples)
      table.row({model.calls[c].name, std::to_string(sample.rows),
                 fmt::format("{:.1f}", sample.forward * 1e6),
                 fmt::format("{:.1f}", sample.backward * 1e6),
                 fmt::format("{:.1f}", sample.backward_input * 1e6),
                 fmt::format("{:.1f}", sample.backward_weight * 1e6),
                 bytes(memory.saved.at(sample.rows)), bytes(memory.forward.at(sample.rows)),
                 bytes(memory.backward.at(sample.rows))});
  }
  fmt::print("{}", table.to_string());
}

Result<void> run_profile(const Registry& registry, CLI::App& verb, ProfileFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  std::optional<std::vector<transport::BenchRow>> between;
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

  std::vector<int64_t> rows = flags.rows;
  if (rows.empty())
    rows = rows_to_measure(*model.spec, compiled.plans);
  PIPER_TRY(const MeasuredCosts measured,
            measure_costs(model, session, std::move(rows),
                          std::chrono::milliseconds(flags.milliseconds), between,
                          std::max(1u, session.devices / flags.job.processes)));

  using Json = nlohmann::ordered_json;
  Json json = Json::parse(measured.costs.to_json(*model.spec));
  json["cluster"] = Json::parse(measured.cluster.to_json());
  PIPER_CHECK_OK(write_file(flags.output, json.dump(1) + "\n", "--output"));
  print_costs(measured.profile, *model.spec);
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
