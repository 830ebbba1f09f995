#include "tools/piper/files.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

namespace piper::cli {

Result<std::string> read_file(const std::string& path, const char* flag) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!(text << file.rdbuf()))
    return user_error(fmt::format("cannot read {}", path), flag);
  return text.str();
}

Result<void> write_file(const std::string& path, const std::string& text, const char* flag) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    return user_error(fmt::format("cannot write {}", path), flag);
  return {};
}

} // namespace piper::cli
