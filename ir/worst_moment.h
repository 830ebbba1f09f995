// Internal to ir/: the moment at which a device holds most, over all timings that its plan allows.
//
// What has started and what has ended at a moment is a set of events that holds with each event all
// that come before it. What the device holds then is what the starts in the set took, less what the
// ends in it let go. The set with the most is a maximum closure, which a minimum cut finds (Picard
// 1976; the cut by Boykov and Kolmogorov 2004).
#pragma once

#include "ir/memory_layout.h"
#include "ir/verify_plan.h"

#include <vector>

namespace piper::ir {

struct WorstMoment {
  uint32_t instruction = 0;       ///< that runs then, or started last
  std::vector<uint32_t> storages; ///< that are live
};

/// Sends do not block; what is sent counts for the sender until it is received. `order`: of the
/// nodes of `joint`, in which they can end, as `verify_progress` gives it. `storages` are those of
/// the device's role. Exact but for storages that several instructions let go of which nothing
/// orders: these count until the first start that comes after all of them.
WorstMoment worst_moment(const JointPlan& joint, const std::vector<uint32_t>& order, size_t device,
                         const std::vector<Storage>& storages);

} // namespace piper::ir
