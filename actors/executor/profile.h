// What the calls of a model cost on this machine: seconds and bytes of each call's forward and
// backward, run as the interpreter runs them, one sweep through the model after the other.
#pragma once

#include "actors/executor/device.h"

#include <chrono>
#include <vector>

namespace piper::executor {

/// A call at one number of rows. Seconds are means, and without what a chunk costs by itself.
struct CallSample {
  int64_t rows = 0;
  double forward = 0, backward = 0;
  double backward_input = 0, backward_weight = 0; ///< where the two run apart
};

struct CallProfile {
  std::vector<CallSample> samples; ///< one for each of ProfileOptions::rows
};

struct ProfileOptions {
  std::vector<int64_t> rows; ///< of a microbatch; at most those of the batch
  int threads = 1;           ///< intra-op, of a device
  int devices = 1;           ///< that run side by side, as they would in the job
  uint64_t seed = 1;
  OptimizerSpec optimizer;
  std::chrono::milliseconds time{1000}; ///< for each number of rows, about
};

struct Profile {
  std::vector<CallProfile> calls; ///< by CallId
  double forward_chunk = 0;       ///< seconds of a forward beside its calls: leaves, edges
  double backward_chunk = 0;      ///< seconds of a backward beside its calls: the autograd engine
  double instruction = 0;         ///< seconds of an instruction beside its work
  double iteration = 0;           ///< seconds of an iteration beside its instructions
  double update = 0;              ///< seconds an element that the optimizer updates
  double add = 0, copy = 0;       ///< seconds a byte
};

/// Runs the model for some seconds. Errors are those of the model's factories and calls.
Result<Profile> profile_model(const Model& model, const ProfileOptions& options);

} // namespace piper::executor
