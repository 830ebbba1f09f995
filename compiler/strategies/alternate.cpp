#include "compiler/strategies/alternate.h"

#include <algorithm>

namespace piper::compiler {

namespace {

int64_t rounds(const ScheduleShape& shape) {
  return std::max<int64_t>(1, shape.microbatches / shape.ranks);
}

/// One pass of all microbatches on a rank, round by round; of a round, stage by stage.
std::vector<Action> in_rounds(const ScheduleShape& shape, int rank, char pass) {
  std::vector<Action> actions;
  const int64_t all = rounds(shape);
  int64_t first = 0;
  for (int64_t round = 0; round < all; ++round) {
    // The longer rounds come first: a warm-up that suits them suits the others.
    const int64_t size = shape.microbatches / all + (round < shape.microbatches % all);
    for (int i = 0; i < shape.chunks; ++i) {
      const int chunk = pass == 'F' ? i : shape.chunks - 1 - i;
      for (int64_t m = first; m < first + size; ++m)
        actions.push_back({chunk * shape.ranks + rank, pass, m});
    }
    first += size;
  }
  return actions;
}

} // namespace

int64_t longest_round(const ScheduleShape& shape) {
  return (shape.microbatches + rounds(shape) - 1) / rounds(shape);
}

ScheduleTable alternate(const ScheduleShape& shape, int slope, char backward) {
  std::vector<std::vector<Step>> rows(shape.ranks);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const std::vector<Action> forwards = in_rounds(shape, rank, 'F');
    const std::vector<Action> backwards = in_rounds(shape, rank, backward);
    const size_t warm_up =
        (shape.chunks - 1) * longest_round(shape) + slope * (shape.ranks - 1 - rank);
    size_t next = std::min(warm_up, forwards.size());
    rows[rank].assign(forwards.begin(), forwards.begin() + next);
    for (const Action& action : backwards) {
      if (next < forwards.size())
        rows[rank].push_back(forwards[next++]);
      rows[rank].push_back(action);
    }
  }
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
