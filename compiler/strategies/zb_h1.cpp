#include "compiler/strategies/alternate.h"
#include "compiler/strategies/fill_weights.h"

namespace piper::compiler {

ScheduleTable zb_h1(const ScheduleShape& shape) {
  return fill_weights(alternate({shape.ranks, shape.microbatches, 1}, 1, 'I'), shape.ranks);
}

} // namespace piper::compiler
