#include "compiler/strategies/strategies.h"

#include <algorithm>

namespace piper::compiler {

std::vector<Step> one_f_one_b_steps(int stages, int stage, int64_t microbatches) {
  const int64_t warm_up = std::min<int64_t>(stages - 1 - stage, microbatches);
  std::vector<Step> steps;
  for (int64_t m = 0; m < warm_up; ++m)
    steps.push_back({'F', m});
  for (int64_t m = warm_up; m < microbatches; ++m) {
    steps.push_back({'F', m});
    steps.push_back({'B', m - warm_up});
  }
  for (int64_t m = microbatches - warm_up; m < microbatches; ++m)
    steps.push_back({'B', m});
  return steps;
}

} // namespace piper::compiler
