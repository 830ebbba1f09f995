// The flags that take away one of the things that make a job fast, for real runs and simulated
// ones.
#pragma once

#include "ir/model_spec.h"
#include "ir/strategy.h"

#include <CLI/CLI.hpp>

#include <optional>
#include <string>
#include <vector>

namespace piper::cli {

struct Ablations {
  bool no_overlap = false; ///< for the plans: SessionOptions::overlap, without_overlap
  bool no_bucketing = false, no_fusion = false;
  std::optional<int64_t> prefetch;

  void add_flags(CLI::App& verb);
  /// What the strategy becomes by the other three.
  Result<ir::Strategy> apply(const ir::ModelSpec& model, ir::Strategy strategy) const;
  /// The flags again, for a program that this one runs.
  std::vector<std::string> arguments() const;
};

/// `--collective` of a real run. Every transport exchanges directly and has no other algorithm, so
/// anything but "direct" is a User error that says where there is a choice.
void add_collective_flag(CLI::App& verb, std::string& algorithm);
Result<void> check_collective(const std::string& algorithm);

} // namespace piper::cli
