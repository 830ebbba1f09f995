#include "compiler/strategies/strategies.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>

namespace piper::compiler {

using namespace ir;

namespace {

constexpr const char* kKnown =
    "known names: single, dp:N, zero1:N, gpipe:P, 1f1b:P; join them with x, as in dp:2x1f1b:4";

struct Atom {
  std::string name;
  int count = 1;
};

Result<std::vector<Atom>> parse(std::string_view expression) {
  std::vector<Atom> atoms;
  std::string_view rest = expression;
  while (true) {
    const size_t x = rest.find('x');
    const std::string_view part = rest.substr(0, x);
    const size_t colon = part.find(':');
    Atom atom{std::string(part.substr(0, colon))};
    if (colon != std::string_view::npos) {
      const std::string_view digits = part.substr(colon + 1);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), atom.count);
      if (error != std::errc() || end != digits.data() + digits.size() || atom.count < 1)
        return user_error(
            fmt::format("'{}' in the strategy '{}' needs a count of at least 1", part, expression),
            "", fmt::format("write {}:2, say", atom.name));
    }
    atoms.push_back(std::move(atom));
    if (x == std::string_view::npos)
      return atoms;
    rest = rest.substr(x + 1);
  }
}

/// Enough to keep the bubble of a pipeline below a fifth, as far as the rows allow.
int64_t choose_microbatches(int64_t rows, int stages) {
  if (stages == 1)
    return 1;
  int64_t best = 1;
  for (int64_t m = 1; m <= std::min<int64_t>(rows, 4 * stages); ++m)
    if (rows % m == 0)
      best = m;
  return best;
}

} // namespace

Result<Strategy> build_strategy(const ModelSpec& model, std::string_view expression,
                                int64_t microbatches) {
  static const std::map<std::string, StepBuilder> pipelines = {{"gpipe", gpipe_steps},
                                                               {"1f1b", one_f_one_b_steps}};
  PIPER_TRY(std::vector<Atom> atoms, parse(expression));
  PipelineShape shape{.model = &model};
  StepBuilder steps = nullptr;
  bool replicated = false;
  for (const Atom& atom : atoms) {
    const auto known = pipelines.find(atom.name);
    const bool data = atom.name == "dp" || atom.name == "zero1";
    if ((known != pipelines.end() && steps) || (data && replicated))
      return user_error(fmt::format("the strategy '{}' has two parts of one kind", expression), "",
                        "join at most one pipeline and one data-parallel part");
    if (known != pipelines.end()) {
      steps = known->second;
      shape.stages = atom.count;
    } else if (data) {
      replicated = true;
      shape.replicas = atom.count;
      shape.shard_optimizer = atom.name == "zero1";
    } else if (atom.name != "single") {
      return user_error(fmt::format("unknown strategy '{}' in '{}'", atom.name, expression), "",
                        kKnown);
    }
  }

  if (model.batch % shape.replicas != 0)
    return user_error(fmt::format("the batch of {} rows is not divisible over {} replicas",
                                  model.batch, shape.replicas),
                      "", fmt::format("choose a batch that is a multiple of {}", shape.replicas));
  if (microbatches % shape.replicas != 0)
    return user_error(
        fmt::format("{} microbatches of the global batch do not divide over {} replicas",
                    microbatches, shape.replicas),
        "", fmt::format("choose a multiple of {}", shape.replicas));
  shape.microbatches = microbatches > 0
                           ? microbatches / shape.replicas
                           : choose_microbatches(model.batch / shape.replicas, shape.stages);
  Strategy strategy;
  if (steps) {
    PIPER_TRY(strategy, pipeline(shape, steps));
  } else {
    strategy = data_parallel(shape);
  }
  strategy.name = std::string(expression);
  return strategy;
}

} // namespace piper::compiler
