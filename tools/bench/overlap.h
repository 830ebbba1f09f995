// How much of the communication a run hides behind its computation, of what its DAG allows.
#pragma once

#include "actors/session.h"
#include "ir/strategy.h"

#include <chrono>
#include <cstdint>
#include <functional>

namespace piper::cli {

struct OverlapBenchmark {
  std::function<Result<Model>()> model;
  ir::Strategy strategy;
  SessionOptions session;               ///< without a link
  int64_t warmup = 2;                   ///< iterations of each job that do not count
  int64_t iterations = 2;               ///< of each turn
  int64_t rounds = 12;                  ///< turns of each job
  std::chrono::milliseconds time{1500}; ///< of measuring calls with each number of rows
  double share = 1; ///< communication takes so many times as long as computation
};

/// Measures what calls cost, and trains three jobs for a few iterations in turn: without a link,
/// and over a throttled link (transport/throttled) with overlap and without. The link is such that
/// an iteration without overlap is longer by `share` times one without the link. What the DAG
/// allows to be hidden is what the simulator hides, its costs scaled so that it agrees with the run
/// without a link, and its link with the one without overlap. Prints the figures and
///   hidden = (without overlap - with overlap) / (without overlap - as the DAG allows).
Result<void> bench_overlap(const OverlapBenchmark& benchmark);

} // namespace piper::cli
