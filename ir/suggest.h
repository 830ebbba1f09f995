// "did you mean …?" for errors about names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace piper::ir {

/// The candidate that is nearest to `word` by single-letter edits; empty if none is near (at most
/// a third of the word's letters, and at least two, may differ).
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

} // namespace piper::ir
