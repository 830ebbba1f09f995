// How much memory the plans can take: a bound that no timing of the streams and no transport
// exceeds.
#pragma once

#include "ir/plan.h"

namespace piper::ir {

/// What a call needs, in bytes a row; 0 where it is not known, and then the bound leaves it out.
struct CallMemory {
  int64_t saved = 0;    ///< that its forward keeps alive for its backward
  int64_t deferred = 0; ///< that its backward for inputs keeps alive for the one for weights
  int64_t forward = 0;  ///< beside inputs, outputs and what is kept, while it goes forward
  int64_t backward = 0; ///< likewise while it goes backward, in whole or in part
};

struct MemoryCosts {
  std::vector<CallMemory> calls; ///< of each call of the model; may be empty
  int moments = 0;               ///< arrays of the optimizer beside the parameters
};

/// Of one device. Where it is reached, by holder.
struct MemoryBound {
  DeviceIndex device = 0;
  uint32_t instruction = 0;                       ///< of its plan, at which most may be live
  int64_t params = 0, gradients = 0, moments = 0; ///< of the buckets; there all the time
  int64_t values = 0;                             ///< activations and their gradients
  int64_t saved = 0;                              ///< by chunks for later passes
  int64_t working = 0;
  int64_t peak() const { return params + gradients + moments + values + saved + working; }
};

/// Never below the true peak, as far as the costs are right: what may be live at a moment is all
/// but what cannot have begun by then, and what must have ended. Both are asked of the waits of all
/// devices, with sends that do not block; what is sent counts for the sender until it is received.
/// Takes O(instructions of all devices) for each device; where that is too much, one device of each
/// role stands for all. An error if the plans cannot run. Not for migrations.
Result<std::vector<MemoryBound>> bound_memory(const PlanSet& plans, const ModelSpec& model,
                                              const MemoryCosts& costs);

/// Refuses plans with which a device may take more than `cap` bytes: an OutOfMemory error that
/// names the device, the instruction, and who holds how much.
Result<void> verify_memory(const PlanSet& plans, const ModelSpec& model, const MemoryCosts& costs,
                           int64_t cap);

} // namespace piper::ir
