#include "compiler/strategies/building_block.h"

#include "compiler/strategies/fill_weights.h"

#include <algorithm>

namespace piper::compiler {

ScheduleTable repeat(const VBlock& block, const ScheduleShape& shape, int limit) {
  constexpr int64_t kInterval = 6;
  const int p = shape.ranks, last = p - 1;
  // When the first leg reaches the last rank, the second rank 0, and so on.
  const int turn_forward = last * block.forward_down + block.forward_turn;
  const int turn_loss = turn_forward + last * block.forward_up + block.loss_turn;
  const int turn_backward = turn_loss + last * block.backward_down + block.backward_turn;
  std::vector<std::vector<Step>> rows(p);
  for (int rank = 0; rank < p; ++rank) {
    const int down = rank, up = 2 * p - 1 - rank;
    std::vector<std::pair<int64_t, Action>> passes;
    for (int64_t m = 0; m < shape.microbatches; ++m) {
      const int64_t at = m * kInterval;
      passes.push_back({at + rank * block.forward_down, {down, 'F', m}});
      passes.push_back({at + turn_forward + (last - rank) * block.forward_up, {up, 'F', m}});
      passes.push_back({at + turn_loss + rank * block.backward_down, {up, 'I', m}});
      passes.push_back({at + turn_backward + (last - rank) * block.backward_up, {down, 'I', m}});
    }
    std::sort(passes.begin(), passes.end());
    for (const auto& [time, action] : passes)
      rows[rank].push_back(action);
  }
  return fill_weights(ScheduleTable(std::move(rows)), limit);
}

} // namespace piper::compiler
