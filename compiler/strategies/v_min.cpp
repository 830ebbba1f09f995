#include "compiler/strategies/building_block.h"

namespace piper::compiler {

ScheduleTable v_min(const ScheduleShape& shape) {
  // The turns keep a rank's passes on different units: which do so depends on p mod 3.
  VBlock block{.forward_down = 1, .forward_up = 1, .backward_down = 1, .backward_up = 1};
  if (shape.ranks % 3 == 0)
    block.forward_turn = block.backward_turn = 3;
  return repeat(block, shape, 2 * ((shape.ranks + 4) / 3));
}

} // namespace piper::compiler
