#include "compiler/strategies/alternate.h"

namespace piper::compiler {

ScheduleTable one_f_one_b(const ScheduleShape& shape) {
  return alternate({shape.ranks, shape.microbatches, 1}, 1, 'B');
}

} // namespace piper::compiler
