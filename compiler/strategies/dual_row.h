// One rank of DualPipe (arXiv 2412.19437) and of its V form, which differ only in what they call
// the rank's two stages.
#pragma once

#include "compiler/strategies/schedule_table.h"

#include <array>
#include <functional>

namespace piper::compiler {

/// A rank's two stages: 0, on the way from the end of the pipeline that the rank is near to the
/// middle, and 1, on the way back or from the other end.
struct DualRank {
  int depth = 1;                         ///< ranks from an end to the middle
  int rank = 0;                          ///< from that end
  std::array<int64_t, 2> microbatches{}; ///< of each stage
  /// The action of the n-th microbatch of stage 0 or 1.
  std::function<Action(char pass, int stage, int64_t n)> action;
};

std::vector<Step> dual_row(const DualRank& rank);

} // namespace piper::compiler
