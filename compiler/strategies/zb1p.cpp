#include "compiler/strategies/alternate.h"
#include "compiler/strategies/fill_weights.h"

namespace piper::compiler {

ScheduleTable zb1p(const ScheduleShape& shape) {
  // p microbatches of all stages; a few more where a round is longer than p.
  const int limit = static_cast<int>((shape.chunks - 1) * longest_round(shape)) + shape.ranks;
  return fill_weights(alternate(shape, 1, 'I'), limit);
}

} // namespace piper::compiler
