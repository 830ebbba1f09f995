#include "compiler/strategies/alternate.h"

namespace piper::compiler {

ScheduleTable interleaved(const ScheduleShape& shape) {
  // Twice the slope of 1F1B: a backward reaches the rank above only after it, and that rank's
  // forward goes on meanwhile.
  return alternate(shape, 2, 'B');
}

} // namespace piper::compiler
