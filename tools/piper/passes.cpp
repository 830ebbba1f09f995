#include "tools/piper/passes.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

namespace piper::cli {

std::string passes_table(const std::vector<compiler::PassStat>& passes) {
  Table table({"pass", "ms", "nodes", "memory"});
  for (const auto& pass : passes)
    table.row({pass.name, fmt::format("{:.2f}", pass.seconds * 1e3), std::to_string(pass.nodes),
               human_bytes(static_cast<double>(pass.bytes))});
  return table.to_string();
}

} // namespace piper::cli
