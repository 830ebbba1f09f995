#include "actors/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>

namespace piper {

Registry& Registry::add(std::string name, Factory factory) {
  factories_.insert_or_assign(std::move(name), std::move(factory));
  return *this;
}

Result<Model> Registry::build(const std::string& name, const std::string& config_json) const {
  auto found = factories_.find(name);
  if (found == factories_.end())
    return user_error(fmt::format("there is no model '{}'", name), "model",
                      fmt::format("known models: {}", fmt::join(names(), ", ")));
  try {
    return found->second(config_json);
  } catch (const std::exception& e) {
    return user_error(e.what(), fmt::format("model '{}'", name));
  }
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> all;
  for (const auto& [name, factory] : factories_)
    all.push_back(name);
  return all;
}

} // namespace piper
