#include "compiler/strategies/building_block.h"

namespace piper::compiler {

ScheduleTable v_half(const ScheduleShape& shape) {
  // The turns keep a rank's passes on different units: which do so depends on p mod 2.
  VBlock block{.forward_down = 1, .forward_up = 2, .backward_down = 1, .backward_up = 2};
  if (shape.ranks % 2 == 0) {
    block.forward_turn = 4;
    block.backward_turn = 5;
  } else {
    block.backward_turn = 2;
  }
  return repeat(block, shape, 2 * (shape.ranks / 2 + 1));
}

} // namespace piper::compiler
