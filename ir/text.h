// Internal to ir/: how the text forms are written and read. A text is a list of lines of words,
// numbers and punctuation; `#` starts a comment. Names made of letters, digits and `. _ - / : =`
// stand bare, all others in quotes.
#pragma once

#include "ir/model_spec.h"
#include "ir/result.h"
#include "ir/tensor_type.h"

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>

namespace piper::ir::text {

void append_name(std::string& out, std::string_view name);
void append_quoted(std::string& out, std::string_view text);
template <class Int> void append_int(std::string& out, Int value) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}
/// The shortest form that reads back as the same number.
void append_double(std::string& out, double value);

/// Ids by name. Transparent, so that a look-up makes no string.
struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const noexcept {
    return std::hash<std::string_view>{}(name);
  }
};
using NameTable = std::unordered_map<std::string, uint32_t, NameHash, std::equal_to<>>;

/// Thrown by Reader and caught by `parsing`; never leaves ir/.
struct ParseFailure {
  Error error;
};

/// Reads one line at a time, left to right, skipping blanks, empty lines and comments.
class Reader {
public:
  explicit Reader(std::string_view text) : rest_(text) {}

  /// Moves to the next line that says something; false at the end of the text.
  bool next_line();
  int line() const { return line_; }
  bool at_end(); ///< of the line

  /// Takes `token` if it is next. A word is only taken whole.
  bool accept(std::string_view token);
  void expect(std::string_view token);
  bool starts_with(std::string_view word); ///< as `accept`, but takes nothing
  /// As `accept`, but only where no blank precedes it.
  bool accept_adjacent(char token);
  /// Takes a word's beginning if the next word starts with it.
  bool accept_prefix(std::string_view prefix);
  bool next_is_quote();
  bool next_is_digit();
  std::string name(const char* what); ///< bare or quoted
  std::string_view bare(const char* what);
  int64_t integer(const char* what);
  /// An integer in [0, UINT32_MAX].
  uint32_t index(const char* what);
  double number(const char* what);
  void end_line();

  [[noreturn]] void fail(std::string message, std::string hint = {}) const;
  /// "expected WHAT, found NEXT"
  [[noreturn]] void fail_expected(std::string_view what);

private:
  void skip_blanks();

  std::string_view rest_;    // lines not reached yet
  std::string_view current_; // what is left of this line
  int line_ = 0;
};

DType read_dtype(Reader& in);
TensorType read_type(Reader& in);
void append_tag(std::string& out, const Tag& tag); ///< layer=3
Tag read_tag(Reader& in);

/// Runs `parse(reader)` and turns a ParseFailure into the error of a Result.
template <class Parse>
auto parsing(std::string_view text, Parse&& parse) -> Result<std::invoke_result_t<Parse, Reader&>> {
  try {
    Reader reader(text);
    return parse(reader);
  } catch (ParseFailure& failure) {
    return std::move(failure.error);
  }
}

} // namespace piper::ir::text
