#include "compiler/compile.h"

#include "compiler/emit_plans.h"
#include "compiler/passes/expand_schedules.h"
#include "compiler/pipeline.h"
#include "ir/footprint.h"
#include "ir/memory_bound.h"
#include "ir/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>

namespace piper::compiler {

using namespace ir;

namespace {

class Stopwatch {
public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - start_).count();
    start_ = now;
    return seconds;
  }

private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Says after which pass the verifier spoke, unless it is the user's directives that contradict.
Error after_pass(Error error, const char* pass) {
  if (error.kind != ErrorKind::User)
    error.where =
        fmt::format("after pass {}{}{}", pass, error.where.empty() ? "" : ", ", error.where);
  return error;
}

} // namespace

std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const NamedPass& pass : pipeline_passes())
    names.push_back(pass.name);
  return names;
}

Result<Compiled> compile(std::shared_ptr<const ModelSpec> model, const Strategy& strategy,
                         const CompileOptions& options) {
  if (!options.stop_after.empty()) {
    const std::vector<std::string> names = pass_names();
    if (std::find(names.begin(), names.end(), options.stop_after) == names.end())
      return user_error(fmt::format("there is no pass '{}'", options.stop_after), "",
                        fmt::format("the passes are {}", fmt::join(names, ", ")));
  }
  PIPER_CHECK_OK(verify(*model));
  PIPER_TRY(Strategy expanded, expand_schedules(*model, strategy));
  Compiled result;
  result.strategy = std::make_shared<const Strategy>(std::move(expanded));
  result.graph.model = std::move(model);
  result.graph.strategy = result.strategy;

  Stopwatch stopwatch;
  auto record = [&](const char* name) {
    PassStat stat{name, stopwatch.lap(), result.graph.node_count()};
    if (options.measure_bytes)
      stat.bytes = bytes_of(result.graph) + bytes_of(result.plans);
    result.passes.push_back(std::move(stat));
    stopwatch.lap(); // measuring is not the next pass's work
  };
  for (const NamedPass& pass : pipeline_passes()) {
    auto next = pass.run(options, result.graph);
    if (!next.ok())
      return std::move(next).error();
    result.graph = *std::move(next);
    if (pass.boundary || options.verify_passes)
      if (auto verified = verify(result.graph); !verified.ok())
        return after_pass(std::move(verified).error(), pass.name);
    record(pass.name);
    if (options.stop_after == pass.name)
      return result;
  }
  result.plans = emit_plans(options, result.graph);
  record("emit_plans");
  if (auto verified = verify(result.plans, *result.graph.model); !verified.ok())
    return after_pass(std::move(verified).error(), "emit_plans");
  record("verify_plans");
  if (options.memory_cap > 0 && options.kind == PlanKind::Train) {
    PIPER_CHECK_OK(
        verify_memory(result.plans, *result.graph.model, options.optimizer, options.memory_cap));
    record("verify_memory");
  }
  return result;
}

} // namespace piper::compiler
