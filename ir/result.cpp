#include "ir/result.h"

#include <array>

namespace piper {

namespace {
constexpr std::array kKinds = {"User",        "Internal",    "DeviceLost", "Timeout",
                               "PeerAborted", "OutOfMemory", "Cancelled"};
} // namespace

const char* to_string(ErrorKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

std::optional<ErrorKind> parse_error_kind(std::string_view text) {
  for (size_t i = 0; i < kKinds.size(); ++i)
    if (text == kKinds[i])
      return static_cast<ErrorKind>(i);
  return std::nullopt;
}

std::string Error::to_string() const {
  std::string out = where.empty() ? message : where + ": " + message;
  if (!hint.empty())
    out += "\n  " + hint;
  return out;
}

} // namespace piper
