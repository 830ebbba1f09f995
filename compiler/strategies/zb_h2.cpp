#include "compiler/strategies/alternate.h"
#include "compiler/strategies/fill_weights.h"

namespace piper::compiler {

ScheduleTable zb_h2(const ScheduleShape& shape) {
  return fill_weights(alternate({shape.ranks, shape.microbatches, 1}, 2, 'I'), 2 * shape.ranks - 1);
}

} // namespace piper::compiler
