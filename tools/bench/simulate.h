// How well the simulator foretells an iteration on this machine.
#pragma once

#include "actors/session.h"
#include "ir/strategy.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::cli {

struct SimulateBenchmark {
  std::vector<std::string> expressions{"single", "dp:2", "gpipe:2", "1f1b:2", "zero3:2"};
  std::vector<ir::Strategy> strategies; ///< of each expression
  std::function<Result<Model>()> model;
  SessionOptions session;            ///< of the job; `devices` is set to what a strategy names
  int64_t unmeasured = 2;            ///< iterations before the first turn
  int64_t iterations = 4;            ///< of each turn
  int64_t rounds = 9;                ///< turns
  std::chrono::milliseconds time{0}; ///< of measuring calls with each number of rows
};

/// For each strategy: trains in this process for a few iterations and measures what calls cost, in
/// turn, and simulates an iteration with the mean of the costs before and after each turn, since
/// the machine's speed changes. Prints medians over the turns, the ratios, and what share
/// of the last iteration of a turn its longest path was: compiler/simulate/timeline.h.
Result<void> bench_simulate(const SimulateBenchmark& benchmark);

} // namespace piper::cli
