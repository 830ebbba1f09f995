// How the devices of a scenario are run and joined.
#pragma once

#include "scenarios.h"
#include "transport/ucx/fabric.h"

namespace piper::transport::testing {

struct World {
  std::string name;
  /// Runs the scenario on every device and returns what failed, or "".
  std::function<std::string(const Scenario&)> run;
};
const std::vector<World>& worlds();

/// Runs the scenario on a thread for each endpoint; they are devices 0 … n-1.
std::string run_on_threads(const Scenario& scenario, std::span<Endpoint* const> endpoints);

/// Fabrics of one process, as if each was another: `placement[i]` are the devices of fabric i.
/// With `routed`, devices of one fabric reach each other by loopback.
std::string run_on_ucx(const Scenario& scenario, UcxMode mode,
                       const std::vector<std::vector<DeviceIndex>>& placement, bool routed);

} // namespace piper::transport::testing
