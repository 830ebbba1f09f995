// Training speed beside another system's on the same model, data and threads.
#pragma once

#include "ir/result.h"

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

struct TrainBenchmark {
  std::vector<std::string> strategies{"single", "dp:2", "gpipe:2", "1f1b:2"};
  /// Sizes of the gpt; flags of `piper train` and of the peer script alike.
  int64_t layers = 8, d_model = 256, heads = 8, seq = 128, batch = 16, microbatches = 8;
  std::string dtype = "float32";
  int64_t iterations = 12, warmup = 2, rounds = 3;
  uint32_t processes = 1; ///< of ours; a peer always has one a device
  /// Peer script and the Python that runs it; empty: no comparison. The script takes --strategy
  /// (single, ddp, gpipe, 1f1b), --world, --threads, the sizes above, --iters, --warmup, --quiet
  /// and --json FILE, into which it writes `tokens_per_s_median` and `losses`.
  std::string peer_script, python;
  std::string peer_name = "PyTorch"; ///< for people; with an empty `python` the script is a program
};

/// Runs each strategy in processes of its own, ours and the peer's in turn, and prints the medians
/// over the rounds, their ratio, and by how much the losses differ.
Result<void> bench_train(const TrainBenchmark& benchmark);

} // namespace piper::cli
