// A table of text for people.
#pragma once

#include <string>
#include <vector>

namespace piper::cli {

class Table {
public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  Table& row(std::vector<std::string> cells) {
    rows_.push_back(std::move(cells));
    return *this;
  }
  /// Columns two spaces apart, the first flush left and the others flush right, a rule below the
  /// header. Ends with a newline.
  std::string to_string() const;

private:
  std::vector<std::vector<std::string>> rows_;
};

} // namespace piper::cli
