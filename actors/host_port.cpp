#include "actors/host_port.h"

#include <charconv>

namespace piper::actors {

Result<std::pair<std::string, uint16_t>> parse_host_port(const std::string& text,
                                                         const std::string& what) {
  size_t colon = text.rfind(':');
  uint16_t port = 0;
  if (colon != std::string::npos && colon > 0) {
    const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
    auto [stopped, status] = std::from_chars(begin, end, port);
    if (begin != end && stopped == end && status == std::errc())
      return std::pair(text.substr(0, colon), port);
  }
  return user_error("'" + text + "' is no address", what, "write HOST:PORT, as in 127.0.0.1:4000");
}

} // namespace piper::actors
