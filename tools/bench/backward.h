// What cutting a backward in two costs.
#pragma once

#include "compiler/frontend/model.h"

#include <chrono>
#include <cstdint>

namespace piper::cli {

struct BackwardBenchmark {
  int64_t rows = 0; ///< of the microbatch; 0: the batch's
  int64_t rounds = 5;
  int threads = 1;
  std::chrono::milliseconds time{1000}; ///< of a round
};

/// Runs the backward of one microbatch whole (B) and in halves (BI, BW), call by call and sweep by
/// sweep in turn, and prints over the rounds the medians and the median and range of (BI + BW) / B.
Result<void> bench_backward(const Model& model, const BackwardBenchmark& benchmark);

} // namespace piper::cli
