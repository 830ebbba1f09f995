// Whole files, with errors that name the flag they were given at.
#pragma once

#include "ir/result.h"

#include <string>

namespace piper::cli {

Result<std::string> read_file(const std::string& path, const char* flag);
Result<void> write_file(const std::string& path, const std::string& text, const char* flag);

} // namespace piper::cli
