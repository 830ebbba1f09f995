#include "compiler/strategies/schedules.h"

namespace piper::compiler {

ScheduleTable gpipe(const ScheduleShape& shape) {
  std::vector<std::vector<Step>> rows(shape.ranks);
  for (int rank = 0; rank < shape.ranks; ++rank)
    for (char pass : {'F', 'B'})
      for (int64_t m = 0; m < shape.microbatches; ++m)
        rows[rank].push_back(Action{rank, pass, m});
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
