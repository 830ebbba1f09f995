#include "compiler/strategies/schedules.h"

namespace piper::compiler {

ScheduleTable looped_bfs(const ScheduleShape& shape) {
  std::vector<std::vector<Step>> rows(shape.ranks);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int64_t m = 0; m < shape.microbatches; ++m)
        rows[rank].push_back(Action{chunk * shape.ranks + rank, 'F', m});
    for (int chunk = shape.chunks; chunk-- > 0;)
      for (int64_t m = 0; m < shape.microbatches; ++m)
        rows[rank].push_back(Action{chunk * shape.ranks + rank, 'B', m});
  }
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
