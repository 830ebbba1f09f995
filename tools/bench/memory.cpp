#include "tools/bench/memory.h"

#include "compiler/compile.h"
#include "ir/memory_bound.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

namespace piper::cli {

namespace {

struct Variant {
  const char* name;
  bool recompute;
  ir::Offload offload;
};
const Variant kVariants[] = {
    {"", false, {.filter = {}, .activations = false}},
    {"recompute", true, {.filter = {}, .activations = false}},
    {"offload", false, {.filter = {}}},
    {"both", true, {.filter = {}, .activations = true, .optimizer = true}},
};

struct Fit {
  int64_t batch = 0;
  int64_t peak = 0; ///< bytes that the compiler foretells of the fullest device
};

class Search {
public:
  Search(const MemoryBenchmark& benchmark, ir::Strategy strategy, uint32_t devices)
      : benchmark_(benchmark), strategy_(std::move(strategy)), devices_(devices) {}

  /// None if not even the smallest batch fits.
  Result<std::optional<Fit>> run() {
    // Replicas and microbatches cut the batch evenly.
    const int64_t unit = benchmark_.microbatches * devices_;
    const int64_t most = std::max<int64_t>(1, benchmark_.largest / unit);
    std::optional<Fit> best;
    int64_t fits = 0, fails = most + 1;
    for (int64_t k = 1; fits + 1 < fails;) {
      PIPER_TRY(const std::optional<Fit> found, attempt(k * unit));
      if (found)
        best = found;
      (found ? fits : fails) = k;
      k = fails > most ? std::min(2 * k, most) : (fits + fails) / 2;
      if (fits == most)
        break;
    }
    return best;
  }

private:
  Result<std::optional<Fit>> attempt(int64_t batch) {
    PIPER_TRY(const Model model, benchmark_.model(batch));
    compiler::CompileOptions options;
    options.devices = devices_;
    PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy_, options));
    PIPER_TRY(const auto bounds,
              ir::bound_memory(compiled.plans, *model.spec, benchmark_.session.optimizer.state()));
    Fit fit{.batch = batch};
    for (const ir::MemoryBound& bound : bounds)
      fit.peak = std::max(fit.peak, bound.peak());
    return fit.peak <= benchmark_.session.memory_cap ? std::optional(fit) : std::nullopt;
  }

  const MemoryBenchmark& benchmark_;
  const ir::Strategy strategy_;
  const uint32_t devices_;
};

struct Trained {
  double rows_per_second = 0;
  int64_t peak = 0, offloaded = 0; ///< bytes of the fullest device
};

Result<Trained> train(const MemoryBenchmark& benchmark, const ir::Strategy& strategy,
                      SessionOptions options, int64_t batch) {
  PIPER_TRY(Model model, benchmark.model(batch));
  PIPER_TRY(const auto session, Session::create(std::move(model), strategy, std::move(options)));
  std::vector<double> seconds;
  PIPER_CHECK_OK(session->run(benchmark.iterations, [&](const StepResult& step) {
    seconds.push_back(step.seconds);
    return true;
  }));
  if (seconds.size() > 1)
    seconds.erase(seconds.begin());
  Trained trained{.rows_per_second = static_cast<double>(batch) / median(seconds)};
  for (const DeviceReport& device : session->metrics().devices) {
    trained.peak = std::max(trained.peak, device.peak_bytes);
    trained.offloaded = std::max(trained.offloaded, device.offloaded_bytes);
  }
  return trained;
}

/// As many as the strategy names.
Result<uint32_t> devices_of(const MemoryBenchmark& benchmark, const ir::Strategy& strategy) {
  PIPER_TRY(const Model model, benchmark.model(benchmark.microbatches * 64));
  PIPER_TRY(const auto compiled, compiler::compile(model.spec, strategy));
  return static_cast<uint32_t>(compiled.plans.devices.size());
}

} // namespace

Result<void> bench_memory(const MemoryBenchmark& benchmark) {
  Table table({"strategy", "with", "batch", "of first", "rows/s", "foretold", "measured",
               "foretold/", "offloaded"});
  int64_t first = 0;
  for (const std::string& expression : benchmark.strategies)
    for (const Variant& variant : kVariants) {
      PIPER_TRY(ir::Strategy strategy, benchmark.strategy(expression, benchmark.microbatches));
      PIPER_TRY(const uint32_t devices, devices_of(benchmark, strategy));
      if (variant.recompute)
        strategy.recompute({});
      if (variant.offload.activations || variant.offload.optimizer)
        strategy.offload(variant.offload);
      PIPER_TRY(const std::optional<Fit> fit, Search(benchmark, strategy, devices).run());
      if (!fit) {
        table.row({expression, variant.name, "none fits"});
        continue;
      }
      if (first == 0)
        first = fit->batch;
      SessionOptions options = benchmark.session;
      options.devices = devices;
      PIPER_TRY(const Trained trained, train(benchmark, strategy, options, fit->batch));
      const auto ratio = [](int64_t a, int64_t b) {
        return fmt::format("{:.2f}", static_cast<double>(a) / static_cast<double>(b));
      };
      table.row({expression, variant.name, std::to_string(fit->batch), ratio(fit->batch, first),
                 fmt::format("{:.0f}", trained.rows_per_second),
                 human_bytes(static_cast<double>(fit->peak)),
                 human_bytes(static_cast<double>(trained.peak)),
                 fmt::format("{:.3f}",
                             static_cast<double>(fit->peak) / static_cast<double>(trained.peak)),
                 human_bytes(static_cast<double>(trained.offloaded))});
      fmt::print(stderr, "{} {}: {} rows\n", expression, variant.name, fit->batch);
    }
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
