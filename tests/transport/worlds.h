// How the devices of a scenario are run and joined.
#pragma once

#include "scenarios.h"

namespace piper::transport::testing {

struct World {
  std::string name;
  /// Runs the scenario on every device and returns what failed, or "".
  std::function<std::string(const Scenario&)> run;
};
/// Those of this test program: worlds.cpp or ucx_worlds.cpp.
const std::vector<World>& worlds();

} // namespace piper::transport::testing
