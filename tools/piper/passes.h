// What compiling took, for people.
#pragma once

#include "compiler/compile.h"

#include <string>
#include <vector>

namespace piper::cli {

/// Of each pass its time, and the nodes and bytes of what it left (measure_bytes).
std::string passes_table(const std::vector<compiler::PassStat>& passes);

} // namespace piper::cli
