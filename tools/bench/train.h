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
  uint32_t processes = 1;             ///< of ours; a peer always has one a device
  bool limits = false;                ///< also measure what the machine would allow
  std::vector<std::string> arguments; ///< further ones of `piper train`: ablations, a slow link
  /// Peer script and the Python that runs it; empty: no comparison. The script takes --strategy
  /// (single, ddp, fsdp2, gpipe, 1f1b, …), --world, --threads, the sizes above, --iters, --warmup,
  /// --quiet and --json FILE, into which it writes `tokens_per_s_median` and `losses`.
  std::string peer_script, python;
  std::string peer_name = "PyTorch"; ///< for people; with an empty `python` the script is a program
};

/// Runs each strategy in processes of its own, ours and the peer's in turn, and prints over the
/// rounds: medians and bests, the median and the range of the ratios, and by how much the losses
/// differ. With `limits` each round also tells what share ours is of its limit:
///   dp:N             N independent processes that each train on one device, side by side;
///   gpipe:P, 1f1b:P  with the stages as busy as they were, no stage can be done before its own
///                    work and one microbatch's of each stage before it.
Result<void> bench_train(const TrainBenchmark& benchmark);

} // namespace piper::cli
