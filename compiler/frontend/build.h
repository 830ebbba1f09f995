// Building modules reproducibly.
#pragma once

#include "compiler/frontend/model.h"

namespace piper {

/// Runs `factory.make` with the default CPU generator seeded by (seed, name), and puts the
/// generator back as it was. One factory at a time in the whole process. Throws what it throws.
BuiltModule build_seeded(const ModuleFactory& factory, uint64_t seed);

} // namespace piper
