#include "ir/text.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper::ir::text {

namespace {

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}
bool is_bare_char(char c) {
  return is_alnum(c) || std::string_view("._-/:=").find(c) != std::string_view::npos;
}
bool is_bare(std::string_view name) {
  return !name.empty() && (is_alnum(name[0]) || name[0] == '_') &&
         std::all_of(name.begin(), name.end(), is_bare_char);
}
constexpr char kHex[] = "0123456789abcdef";

} // namespace

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) { // a line stays a line
      out += "\\x";
      out += kHex[c >> 4];
      out += kHex[c & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_name(std::string& out, std::string_view name) {
  if (is_bare(name))
    out += name;
  else
    append_quoted(out, name);
}

void append_double(std::string& out, double value) {
  char digits[32];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

bool Reader::next_line() {
  while (!rest_.empty()) {
    size_t end = std::min(rest_.find('\n'), rest_.size());
    current_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_;
    if (!at_end())
      return true;
  }
  current_ = {};
  return false;
}

void Reader::skip_blanks() {
  size_t i = 0;
  while (i < current_.size() && (current_[i] == ' ' || current_[i] == '\t' || current_[i] == '\r'))
    ++i;
  current_.remove_prefix(i);
  if (!current_.empty() && current_[0] == '#')
    current_ = {};
}

bool Reader::at_end() {
  skip_blanks();
  return current_.empty();
}

bool Reader::starts_with(std::string_view token) {
  skip_blanks();
  return current_.starts_with(token) &&
         !(is_alnum(token.back()) && current_.size() > token.size() &&
           is_bare_char(current_[token.size()]));
}

bool Reader::accept(std::string_view token) {
  if (!starts_with(token))
    return false;
  current_.remove_prefix(token.size());
  return true;
}

void Reader::expect(std::string_view token) {
  if (!accept(token))
    fail_expected(fmt::format("\"{}\"", token));
}

bool Reader::accept_adjacent(char token) {
  if (current_.empty() || current_[0] != token)
    return false;
  current_.remove_prefix(1);
  return true;
}

bool Reader::accept_prefix(std::string_view prefix) {
  skip_blanks();
  if (!current_.starts_with(prefix))
    return false;
  current_.remove_prefix(prefix.size());
  return true;
}

bool Reader::next_is_digit() {
  skip_blanks();
  return !current_.empty() && current_[0] >= '0' && current_[0] <= '9';
}

bool Reader::next_is_quote() {
  skip_blanks();
  return !current_.empty() && current_[0] == '"';
}

std::string_view Reader::bare(const char* what) {
  skip_blanks();
  size_t length = 0;
  while (length < current_.size() && is_bare_char(current_[length]))
    ++length;
  std::string_view word = current_.substr(0, length);
  if (!is_bare(word))
    fail_expected(what);
  current_.remove_prefix(length);
  return word;
}

std::string Reader::name(const char* what) {
  if (!next_is_quote())
    return std::string(bare(what));
  std::string out;
  size_t i = 1;
  for (; i < current_.size() && current_[i] != '"'; ++i) {
    if (current_[i] != '\\') {
      out += current_[i];
    } else if (i + 3 < current_.size() && current_[i + 1] == 'x') {
      unsigned value = 0;
      if (std::from_chars(&current_[i + 2], &current_[i + 2] + 2, value, 16).ec != std::errc())
        fail("\\x in a quoted name wants two hex digits");
      out += static_cast<char>(value);
      i += 3;
    } else if (i + 1 < current_.size()) {
      out += current_[++i];
    }
  }
  if (i >= current_.size())
    fail("a quoted name has no closing quote");
  current_.remove_prefix(i + 1);
  return out;
}

int64_t Reader::integer(const char* what) {
  skip_blanks();
  int64_t value = 0;
  auto [end, status] = std::from_chars(current_.data(), current_.data() + current_.size(), value);
  if (status != std::errc())
    fail_expected(what);
  current_.remove_prefix(static_cast<size_t>(end - current_.data()));
  return value;
}

uint32_t Reader::index(const char* what) {
  int64_t value = integer(what);
  if (value < 0 || value > UINT32_MAX)
    fail(fmt::format("{} is out of range: {}", what, value));
  return static_cast<uint32_t>(value);
}

double Reader::number(const char* what) {
  skip_blanks();
  double value = 0;
  auto [end, status] = std::from_chars(current_.data(), current_.data() + current_.size(), value);
  if (status != std::errc())
    fail_expected(what);
  current_.remove_prefix(static_cast<size_t>(end - current_.data()));
  return value;
}

void Reader::end_line() {
  if (!at_end())
    fail_expected("the end of the line");
}

void Reader::fail(std::string message, std::string hint) const {
  throw ParseFailure{
      user_error(std::move(message), "line " + std::to_string(line_), std::move(hint))};
}

void Reader::fail_expected(std::string_view what) {
  std::string found = "the end of the line";
  if (!at_end())
    found = fmt::format("\"{}\"", current_.substr(0, 24));
  fail(fmt::format("expected {}, found {}", what, found));
}

} // namespace piper::ir::text
