// UCX, alone, routed, and behind a slow link: several fabrics in this process, as if each was of
// another.
#include "worlds.h"

#include "transport/loopback/fabric.h"
#include "transport/router.h"
#include "transport/throttled/endpoint.h"
#include "transport/ucx/fabric.h"

#include <fmt/format.h>
#include <memory>

namespace piper::transport::testing {
namespace {

/// `placement[i]` are the devices of fabric i. With `routed`, they reach each other by loopback.
std::string run_on_ucx(const Scenario& scenario, UcxMode mode,
                       const std::vector<std::vector<DeviceIndex>>& placement, bool routed,
                       Link link = {}) {
  std::vector<std::unique_ptr<UcxFabric>> fabrics;
  std::vector<std::unique_ptr<LoopbackFabric>> loopbacks;
  std::vector<std::unique_ptr<Endpoint>> routers;
  std::vector<std::unique_ptr<ThrottledEndpoint>> throttled;
  std::vector<Endpoint*> endpoints;
  for (const auto& devices : placement) {
    auto fabric = UcxFabric::create({.devices = devices, .mode = mode});
    if (!fabric.ok())
      return fabric.error().to_string();
    fabrics.push_back(*std::move(fabric));
    loopbacks.push_back(std::make_unique<LoopbackFabric>(devices));
  }
  for (size_t i = 0; i < placement.size(); ++i) {
    std::vector<UcxPeer> peers;
    for (size_t k = 0; k < placement.size(); ++k)
      if (k != i)
        peers.push_back({fabrics[k]->address(), placement[k]});
    if (auto result = fabrics[i]->connect(peers); !result.ok())
      return result.error().to_string();
    for (DeviceIndex device : placement[i]) {
      endpoints.resize(std::max<size_t>(endpoints.size(), device + 1));
      endpoints[device] = &fabrics[i]->endpoint(device);
      if (routed) {
        routers.push_back(std::make_unique<RoutedEndpoint>(
            loopbacks[i]->endpoint(device), fabrics[i]->endpoint(device), placement[i]));
        endpoints[device] = routers.back().get();
      }
    }
  }
  if (!link.unlimited())
    for (Endpoint*& endpoint : endpoints) {
      throttled.push_back(std::make_unique<ThrottledEndpoint>(
          *endpoint, static_cast<uint32_t>(endpoints.size()), link));
      endpoint = throttled.back().get();
    }
  return run_on_threads(scenario, endpoints, static_cast<uint32_t>(endpoints.size()));
}

} // namespace

const std::vector<World>& worlds() {
  static const std::vector<World> all = [] {
    std::vector<World> list;
    for (auto [mode, name] :
         {std::pair(UcxMode::SharedMemory, "shared memory"), std::pair(UcxMode::Tcp, "tcp")}) {
      list.push_back({fmt::format("ucx over {}, 2 fabrics", name), [mode](const Scenario& s) {
                        return run_on_ucx(s, mode, {{0}, {1}}, false);
                      }});
      list.push_back(
          {fmt::format("ucx over {}, 2 fabrics of 2 devices", name), [mode](const Scenario& s) {
             return run_on_ucx(s, mode, {{1, 0}, {3, 2}}, false);
           }});
      list.push_back({fmt::format("routed, ucx over {}", name), [mode](const Scenario& s) {
                        return run_on_ucx(s, mode, {{0, 2}, {1}}, true);
                      }});
    }
    list.push_back({"routed, behind a link", [](const Scenario& s) {
                      return run_on_ucx(s, UcxMode::SharedMemory, {{0, 2}, {1}}, true,
                                        {std::chrono::microseconds(300), 2e9});
                    }});
    return list;
  }();
  return all;
}

} // namespace piper::transport::testing
