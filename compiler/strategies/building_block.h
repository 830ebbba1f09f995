// Schedules by repeating a building block (arXiv 2405.15362): the passes of one microbatch over all
// ranks; the next microbatch's block is the same, one interval later.
#pragma once

#include "compiler/strategies/schedules.h"

namespace piper::compiler {

/// Two stages a rank, in a V: forward down the ranks and up again, backward for inputs down and up.
/// In units of a pass; a step of d from rank to rank takes d units, a gap lies between the last
/// pass of one leg and the first of the next on the same rank.
struct VBlock {
  int forward_down = 1, forward_up = 1, backward_down = 1, backward_up = 1; ///< rank to rank
  int forward_turn = 1;                                                     ///< on the last rank
  int loss_turn = 1;                                                        ///< on rank 0
  int backward_turn = 1;                                                    ///< on the last rank
};

/// Repeats the block every 6 units (two stages' F, I and W), drops the idle time that this leaves,
/// and fills in the weights' backwards, keeping at most `limit` microbatches of a rank's stages. No
/// two passes of a rank may fall on one unit.
ScheduleTable repeat(const VBlock& block, const ScheduleShape& shape, int limit);

} // namespace piper::compiler
