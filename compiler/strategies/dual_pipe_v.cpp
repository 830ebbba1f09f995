#include "compiler/strategies/dual_row.h"
#include "compiler/strategies/schedules.h"

namespace piper::compiler {

ScheduleTable dual_pipe_v(const ScheduleShape& shape) {
  const int p = shape.ranks;
  std::vector<std::vector<Step>> rows(p);
  for (int rank = 0; rank < p; ++rank)
    rows[rank] = dual_row({.depth = p,
                           .rank = rank,
                           .microbatches = {shape.microbatches, shape.microbatches},
                           .action = [&](char pass, int stage, int64_t n) {
                             return Action{stage == 0 ? rank : 2 * p - 1 - rank, pass, n};
                           }});
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
