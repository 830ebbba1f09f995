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
  case OpKind::Gather:
    return "gathering";
  }
  return "?";
}

double combine_losses(const std::vector<std::vector<double>>& losses) {
  size_t microbatches = 0;
  for (const auto& of_rank : losses)
    microbatches = std::max(microbatches, of_rank.size());
  double sum = 0;
  for (size_t m = 0; m < microbatches; ++m) {
    double over_ranks = 0;
    int ranks = 0;
    for (const auto& of_rank : losses)
      if (m < of_rank.size()) {
        over_ranks += of_rank[m];
        ++ranks;
      }
    sum += over_ranks / ranks;
  }
  return microbatches ? sum / static_cast<double>(microbatches) : 0;
}

} // namespace piper::actors
