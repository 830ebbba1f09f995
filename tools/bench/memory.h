// The largest batch that fits a device under each strategy, and how fast it trains.
#pragma once

#include "actors/session.h"
#include "ir/strategy.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace piper::cli {

struct MemoryBenchmark {
  std::vector<std::string> strategies{"dp:4",  "1f1b:4",      "interleaved:4",
                                      "zbv:4", "dualpipev:4", "zero3:4"};
  int64_t microbatches = 8;  ///< of every strategy, so that the batch is what grows
  int64_t iterations = 3;    ///< of each, the first of which does not count
  int64_t largest = 1 << 16; ///< rows; no batch beyond is tried
  /// Of a job: the cap, threads, … `devices` is set to what the strategies name.
  SessionOptions session;
  std::function<Result<Model>(int64_t batch)> model;
  std::function<Result<ir::Strategy>(const std::string& expression, int64_t microbatches)> strategy;
};

/// Each strategy plain, with `recompute`, with `offload` of activations, and with both and the
/// optimizer's state offloaded. The compiler's bound decides what fits; the largest batch is then
/// trained under the cap. Prints a table; batches are compared with the first strategy's plain one.
Result<void> bench_memory(const MemoryBenchmark& benchmark);

} // namespace piper::cli
