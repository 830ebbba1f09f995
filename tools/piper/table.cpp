#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper::cli {

std::string Table::to_string() const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? fmt::format("{:<{}}", row[i], widths[i])
                     : fmt::format("  {:>{}}", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    if (&row == &rows_.front())
      text += std::string(line.size(), '-') + "\n";
  }
  return text;
}

} // namespace piper::cli
