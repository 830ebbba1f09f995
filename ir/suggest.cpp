#include "ir/suggest.h"

#include <algorithm>
#include <numeric>

namespace piper::ir {

namespace {

/// Levenshtein distance, in one row.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      size_t replace = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

} // namespace

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t bound = std::max<size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates)
    if (size_t d = distance(word, candidate); d < bound && d < std::max<size_t>(word.size(), 1)) {
      bound = d;
      best = candidate;
    }
  return best;
}

} // namespace piper::ir
