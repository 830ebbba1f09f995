// The characters of a text, with a count of where one is: nlohmann::json does not say where in a
// text a value stands.
#pragma once

#include <cstddef>
#include <iterator>

namespace piper::ir {

struct TextPosition {
  int line = 1, column = 0; ///< column: characters of the line that have been passed
};

/// A pair of these is what `nlohmann::json::parse` takes. All copies move one position, which the
/// parser's callbacks can read; the text and the position must outlive them.
struct CountingIterator {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at = nullptr;
  TextPosition* position = nullptr;

  reference operator*() const { return *at; }
  CountingIterator& operator++() {
    if (*at == '\n')
      *position = {position->line + 1, 0};
    else
      ++position->column;
    ++at;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at == other.at; }
};

} // namespace piper::ir
