// What 1F1B, its interleaved form and the zero-bubble schedules made from it have in common.
#pragma once

#include "compiler/strategies/schedules.h"

namespace piper::compiler {

/// After a warm-up of forwards, one forward and one backward in turn. With v stages a rank, looped,
/// microbatches go in rounds: a round passes a rank's first stage, then its second, and so on. A
/// rank warms up with (v-1) rounds and `slope` further forwards for each rank between it and the
/// last. `backward`: 'B', or 'I' for orders that `fill_weights` completes.
ScheduleTable alternate(const ScheduleShape& shape, int slope, char backward);

/// Microbatches of the longest round of `alternate`: all rounds have p or a few more, so that any
/// number of microbatches will do; p exactly where p divides them.
int64_t longest_round(const ScheduleShape& shape);

} // namespace piper::compiler
