#include "actors/protocol.h"

namespace piper::actors {

StrategyText StrategyText::of(const ir::Strategy& strategy) {
  StrategyText text{strategy.name, strategy.to_json(), {}, {}};
  for (const auto& directive : strategy.directives) {
    text.files.push_back(directive.origin.file);
    text.lines.push_back(directive.origin.line);
  }
  return text;
}

Result<ir::Strategy> StrategyText::parse() const {
  PIPER_TRY(ir::Strategy strategy, ir::Strategy::parse(json, name));
  strategy.name = name;
  for (size_t i = 0; i < strategy.directives.size() && i < files.size(); ++i)
    strategy.directives[i].origin = {files[i], lines[i]};
  return strategy;
}

const char* to_string(OpKind kind) {
  switch (kind) {
  case OpKind::Initialize:
    return "initialize";
  case OpKind::Run:
    return "iteration";
  case OpKind::Evaluate:
    return "evaluation";
  case OpKind::Migrate:
    return "migration";
  case OpKind::Commit:
    return "commit";
  case OpKind::Recover:
    return "recovery";
  case OpKind::Hashes:
    return "hashing";
  case OpKind::Timeline:
    return "timeline";
  case OpKind::Gather:
    return "gathering";
  }
  return "?";
}

double combine_losses(const std::vector<std::vector<double>>& losses) {
  double sum = 0;
  int64_t microbatches = 0;
  for (const auto& of_ranks : losses) {
    if (of_ranks.empty())
      continue;
    double over_ranks = 0;
    for (double loss : of_ranks)
      over_ranks += loss;
    sum += over_ranks / static_cast<double>(of_ranks.size());
    ++microbatches;
  }
  return microbatches ? sum / static_cast<double>(microbatches) : 0;
}

} // namespace piper::actors
