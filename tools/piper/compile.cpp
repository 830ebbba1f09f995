#include "compiler/compile.h"
#include "compiler/strategies/strategies.h"
#include "tools/piper/job.h"
#include "tools/piper/passes.h"
#include "tools/piper/verbs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

namespace piper::cli {

namespace {

struct CompileFlags {
  Job job;
  std::string emit = "plan";
  std::string after;
  bool eval = false, statistics = false;
};

Result<void> run_compile(const Registry& registry, CLI::App& verb, CompileFlags& flags) {
  PIPER_CHECK_OK(flags.job.read_config(verb));
  const auto passes = compiler::pass_names();
  if (!flags.after.empty()) {
    if (std::find(passes.begin(), passes.end(), flags.after) == passes.end())
      return user_error(fmt::format("there is no pass \"{}\"", flags.after), "--after",
                        fmt::format("the passes are {}", fmt::join(passes, ", ")));
    if (flags.emit == "plan")
      return user_error("plans are there only after the last pass", "--emit plan --after",
                        "leave out --after, or emit the graph");
  }
  PIPER_TRY(const Model model, flags.job.build_model(registry));
  PIPER_TRY(ir::Strategy strategy, flags.job.strategy());
  PIPER_TRY(strategy, flags.job.balance(model, std::move(strategy)));
  compiler::CompileOptions options;
  options.kind = flags.eval ? ir::PlanKind::Eval : ir::PlanKind::Train;
  options.devices = flags.job.devices;
  options.stop_after = flags.after;
  options.measure_bytes = flags.statistics;
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy, options));

  if (flags.emit == "csv") {
    PIPER_TRY(const auto table, compiler::schedule_of(*compiled.strategy));
    std::fputs(table.to_csv().c_str(), stdout);
    return {};
  }
  const std::string text = flags.emit == "plan"    ? compiled.plans.to_text(model.spec.get())
                           : flags.emit == "graph" ? compiled.graph.to_text()
                                                   : compiled.graph.to_dot();
  std::fputs(text.c_str(), stdout);
  if (flags.statistics) {
    std::fputs(passes_table(compiled.passes).c_str(), stderr);
  }
  return {};
}

} // namespace

void add_compile(CLI::App& program, const Registry& registry, int& exit_code) {
  auto* verb = program.add_subcommand("compile", "Compile a strategy and show any stage of it");
  auto flags = std::make_shared<CompileFlags>();
  flags->job.add_model_flags(*verb);
  flags->job.add_strategy_flags(*verb);
  verb->add_option("--emit", flags->emit, "graph, plan, dot, or csv: the schedule for PyTorch")
      ->check(CLI::IsMember({"graph", "plan", "dot", "csv"}))
      ->capture_default_str();
  verb->add_option("--after", flags->after, "Stop after this pass (not with --emit plan)");
  verb->add_flag("--eval", flags->eval, "The plans of an evaluation instead of training");
  verb->add_flag("--statistics", flags->statistics,
                 "Time, nodes and memory of each pass, on stderr");
  verb->callback([verb, flags, &registry, &exit_code] {
    const auto result = run_compile(registry, *verb, *flags);
    exit_code = result.ok() ? kDone : fail(result.error());
  });
}

} // namespace piper::cli
