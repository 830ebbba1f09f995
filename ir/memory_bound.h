// How much memory the plans can take: a bound that no timing of the streams and no transport
// exceeds, and that some timing comes to.
#pragma once

#include "ir/plan.h"

#include <string>

namespace piper::ir {

/// Of one device. Where it is reached, by holder.
struct MemoryBound {
  DeviceIndex device = 0;
  uint32_t instruction = 0; ///< of its plan, at which most may be live
  /// Of the buckets and modules; there all the time.
  int64_t params = 0, gradients = 0, moments = 0, mirrors = 0, constants = 0;
  int64_t values = 0;  ///< activations and their gradients
  int64_t saved = 0;   ///< by chunks for later passes
  int64_t working = 0; ///< beside what instructions leave; less where they let go as they run
  std::vector<std::string> largest; ///< "what F attn3 @2 left (12345 bytes)": at most three
  int64_t peak() const {
    return params + gradients + moments + mirrors + constants + values + saved + working;
  }
};

/// The most that iterations can hold under any timing of the streams of all devices, as far as the
/// calls' memory is known: what the worst moment holds (worst_moment.h), with sends that do not
/// block; what is sent counts for the sender until it is received. `kinds`: the arrays that the
/// optimizer keeps. Not counted: what the data source and the initializer use for themselves, and
/// copies of tensors that are sent while they are not dense. What was measured of a whole call is
/// shared out evenly where a group cuts it; of the rows of a block, which the data routes to
/// experts, each rank may get all. Not for evaluations and migrations. Takes O(instructions of all
/// devices) for each device, and a minimum cut; where that is too much, one device of each role
/// stands for all. An error if the plans cannot run.
Result<std::vector<MemoryBound>> bound_memory(const PlanSet& plans, const ModelSpec& model,
                                              const std::vector<StateKind>& kinds);

/// Refuses plans with which a device may take more than `cap` bytes: an OutOfMemory error that
/// names the device, the instruction, who holds how much, and what to do.
Result<void> verify_memory(const PlanSet& plans, const ModelSpec& model,
                           const std::vector<StateKind>& kinds, int64_t cap);

} // namespace piper::ir
