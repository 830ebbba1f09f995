// "host:port" in options and flags.
#pragma once

#include "ir/result.h"

#include <cstdint>
#include <string>
#include <utility>

namespace piper::actors {

/// A User error that names `what` ("listen", "join", …) if the text is none.
Result<std::pair<std::string, uint16_t>> parse_host_port(const std::string& text,
                                                         const std::string& what);

} // namespace piper::actors
