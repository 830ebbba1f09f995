#include "tools/piper/ablations.h"

#include "compiler/simulate/ablate.h"

#include <fmt/format.h>

namespace piper::cli {

void Ablations::add_flags(CLI::App& verb) {
  const auto flag = [&](const char* name, bool& target, const char* help) {
    verb.add_flag(name, target, help)->group("Ablations");
  };
  flag("--no-overlap", no_overlap, "Everything of a device on one stream");
  flag("--no-bucketing", no_bucketing, "A reduction for each segment");
  flag("--no-fusion", no_fusion, "An instruction for each call");
  verb.add_option("--prefetch", prefetch,
                  "Windows ahead that sharded parameters are gathered, whatever the strategy says")
      ->check(CLI::NonNegativeNumber)
      ->group("Ablations");
}

Result<ir::Strategy> Ablations::apply(const ir::ModelSpec& model, ir::Strategy strategy) const {
  if (no_fusion) {
    PIPER_TRY(strategy, compiler::without_fusion(model, strategy));
  }
  if (no_bucketing) {
    PIPER_TRY(strategy, compiler::without_bucketing(model, strategy));
  }
  if (prefetch) {
    PIPER_TRY(strategy, compiler::with_prefetch(model, strategy, *prefetch));
  }
  return strategy;
}

std::vector<std::string> Ablations::arguments() const {
  std::vector<std::string> all;
  if (no_overlap)
    all.emplace_back("--no-overlap");
  if (no_bucketing)
    all.emplace_back("--no-bucketing");
  if (no_fusion)
    all.emplace_back("--no-fusion");
  if (prefetch)
    all.insert(all.end(), {"--prefetch", std::to_string(*prefetch)});
  return all;
}

void add_collective_flag(CLI::App& verb, std::string& algorithm) {
  verb.add_option("--collective", algorithm, "direct: the only one that the transports have")
      ->group("Ablations");
}

Result<void> check_collective(const std::string& algorithm) {
  if (algorithm.empty() || algorithm == "direct")
    return {};
  return user_error(fmt::format("the transports run every collective as a direct exchange, not as "
                                "\"{}\"",
                                algorithm),
                    "--collective", "compare algorithms with piper simulate --collective");
}

} // namespace piper::cli
