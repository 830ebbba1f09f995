#include "compiler/strategies/strategies.h"

namespace piper::compiler {

std::vector<Step> gpipe_steps(int, int, int64_t microbatches) {
  std::vector<Step> steps;
  for (int64_t m = 0; m < microbatches; ++m)
    steps.push_back({'F', m});
  for (int64_t m = 0; m < microbatches; ++m)
    steps.push_back({'B', m});
  return steps;
}

} // namespace piper::compiler
