#include "compiler/strategies/dual_row.h"
#include "compiler/strategies/schedules.h"

#include <fmt/format.h>

namespace piper::compiler {

Result<ScheduleTable> dual_pipe(const ScheduleShape& shape) {
  const int p = shape.ranks;
  if (p % 2 != 0)
    return user_error(fmt::format("dualpipe needs an even number of ranks, not {}", p), "",
                      fmt::format("use {} or {}, or dualpipev:{}", p - 1, p + 1, p));
  // Down the ranks goes the first half of the microbatches, up the second.
  const int64_t down = (shape.microbatches + 1) / 2, up = shape.microbatches / 2;
  std::vector<std::vector<Step>> rows(p);
  for (int rank = 0; rank < p; ++rank) {
    const bool upper = rank >= p / 2;
    const int near = upper ? p - 1 - rank : rank;
    rows[rank] =
        dual_row({.depth = p / 2,
                  .rank = near,
                  .microbatches = upper ? std::array{up, down} : std::array{down, up},
                  .action = [&](char pass, int stage, int64_t n) {
                    const bool goes_up = upper == (stage == 0);
                    return Action{stage == 0 ? near : p - 1 - near, pass, goes_up ? down + n : n};
                  }});
  }
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
