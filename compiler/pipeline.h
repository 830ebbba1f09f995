// The compiler on one page: the passes in order.
#pragma once

#include "compiler/passes/pass.h"

#include <span>

namespace piper::compiler {

struct NamedPass {
  const char* name;
  Pass run;
  /// Whether what it leaves is always verified: where the user's directives may contradict each
  /// other, and at the end.
  bool boundary;
};

std::span<const NamedPass> pipeline_passes();

} // namespace piper::compiler
