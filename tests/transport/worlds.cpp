// Loopback, plain and behind a slow link: the devices are threads of this process.
#include "worlds.h"

#include "transport/loopback/fabric.h"
#include "transport/throttled/endpoint.h"

#include <fmt/format.h>
#include <memory>
#include <optional>

namespace piper::transport::testing {
namespace {

std::string run_loopback(const Scenario& scenario, uint32_t devices, LoopbackOptions options,
                         std::optional<Link> link = {}) {
  std::vector<DeviceIndex> all;
  for (DeviceIndex d = 0; d < devices; ++d)
    all.push_back(d);
  LoopbackFabric fabric(all, options);
  std::vector<std::unique_ptr<ThrottledEndpoint>> throttled;
  std::vector<Endpoint*> endpoints;
  for (DeviceIndex d : all) {
    endpoints.push_back(&fabric.endpoint(d));
    if (link) {
      throttled.push_back(std::make_unique<ThrottledEndpoint>(*endpoints[d], devices, *link));
      endpoints[d] = throttled.back().get();
    }
  }
  return run_on_threads(scenario, endpoints, static_cast<uint32_t>(endpoints.size()));
}

} // namespace

const std::vector<World>& worlds() {
  static const std::vector<World> all = [] {
    std::vector<World> list;
    for (uint32_t n : {2u, 4u})
      list.push_back({fmt::format("loopback, {} devices", n),
                      [n](const Scenario& s) { return run_loopback(s, n, {}); }});
    list.push_back({"loopback, 3 devices, no spin", [](const Scenario& s) {
                      return run_loopback(s, 3, {.spin = std::chrono::nanoseconds(0)});
                    }});
    list.push_back({"loopback behind a link, 3 devices", [](const Scenario& s) {
                      return run_loopback(s, 3, {}, Link{std::chrono::microseconds(300), 2e9});
                    }});
    return list;
  }();
  return all;
}

} // namespace piper::transport::testing
