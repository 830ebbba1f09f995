#include "compiler/strategies/fill_weights.h"
#include "compiler/strategies/schedules.h"

#include <algorithm>

namespace piper::compiler {

ScheduleTable zbv(const ScheduleShape& shape) {
  const int p = shape.ranks;
  // With fewer microbatches than fill the V, those that are not there are left out.
  const int64_t full = std::max<int64_t>(shape.microbatches, 2 * p - 1);
  std::vector<std::vector<Step>> rows(p);
  for (int rank = 0; rank < p; ++rank) {
    int64_t f[2] = {0, 0}, i[2] = {0, 0}; // the next microbatch of the stage down and the one up
    const auto add = [&](char pass, int chunk) {
      const int64_t m = (pass == 'F' ? f : i)[chunk]++;
      if (m < shape.microbatches)
        rows[rank].push_back(Action{chunk == 0 ? rank : 2 * p - 1 - rank, pass, m});
    };
    for (int n = 2 * (p - rank) - 1; n > 0; --n)
      add('F', 0);
    for (int n = rank; n > 0; --n) {
      add('F', 1);
      add('F', 0);
    }
    for (int n = p - rank; n > 0; --n) {
      add('F', 1);
      add('I', 1);
    }
    while (f[1] < full) {
      if (f[0] < full)
        add('F', 0);
      add('I', 0);
      add('F', 1);
      add('I', 1);
    }
    for (int n = rank; n > 0; --n) {
      add('I', 0);
      add('I', 1);
    }
    for (int n = p - rank; n > 0; --n)
      add('I', 0);
  }
  return fill_weights(ScheduleTable(std::move(rows)), 2 * p);
}

} // namespace piper::compiler
