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
  SessionOptions session; ///< of the job; `devices` is set to what a strategy names
  int64_t iterations = 10, unmeasured = 2, rounds = 3;
  std::chrono::milliseconds time{1500}; ///< of measuring calls with each number of rows
};

/// In each round and for each strategy: trains some iterations in this process; measures what calls
/// cost and simulates an iteration before and after, and takes the mean of both, since the
/// machine's speed changes. Prints medians over the rounds, and the ratios.
Result<void> bench_simulate(const SimulateBenchmark& benchmark);

} // namespace piper::cli
