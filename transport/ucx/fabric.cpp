#include "transport/ucx/fabric.h"

#include "transport/ucx/endpoint.h"

#include <algorithm>
#include <cassert>
#include <fmt/format.h>
#include <set>

namespace piper::transport {

struct UcxFabric::State {
  UcxRoutes routes;
  std::vector<std::unique_ptr<UcxEndpoint>> endpoints; ///< by place
  std::unique_ptr<UcxWorker> worker;                   ///< first to go: it calls the endpoints
};

UcxFabric::UcxFabric(std::unique_ptr<State> state) : state_(std::move(state)) {}
UcxFabric::~UcxFabric() = default;

Result<std::unique_ptr<UcxFabric>> UcxFabric::create(UcxOptions options) {
  const std::set<DeviceIndex> distinct(options.devices.begin(), options.devices.end());
  if (options.devices.empty() || options.devices.size() > kTagMaxPlaces ||
      distinct.size() != options.devices.size() || *distinct.rbegin() > kTagMaxDevice)
    return internal_error(fmt::format("a UCX fabric needs 1 to {} distinct devices, none above {}",
                                      kTagMaxPlaces, kTagMaxDevice),
                          "ucx");
  options.devices.assign(distinct.begin(), distinct.end()); // a place is the index in this order
  auto state = std::make_unique<State>();
  PIPER_TRY(state->worker, UcxWorker::create(options));
  PIPER_TRY(UcxConnection * own,
            state->worker->connect(state->worker->address(), options.devices, true));
  for (size_t place = 0; place < options.devices.size(); ++place) {
    const DeviceIndex device = options.devices[place];
    state->routes[device] = {own, place};
    state->endpoints.push_back(
        std::make_unique<UcxEndpoint>(*state->worker, state->routes, device, place));
  }
  auto lock = state->worker->lock();
  state->worker->on_tick = [&endpoints = state->endpoints](const UcxWorker::Lock& l) {
    for (auto& endpoint : endpoints)
      endpoint->tick(l);
  };
  lock.unlock();
  return std::unique_ptr<UcxFabric>(new UcxFabric(std::move(state)));
}

const std::string& UcxFabric::address() const {
  return state_->worker->address();
}

Result<void> UcxFabric::connect(std::span<const UcxPeer> peers) {
  for (UcxPeer peer : peers) {
    std::sort(peer.devices.begin(), peer.devices.end());
    if (peer.devices.empty() || peer.devices.size() > kTagMaxPlaces)
      return internal_error("a peer has no devices, or too many", "ucx");
    {
      auto lock = state_->worker->lock();
      for (DeviceIndex device : peer.devices) {
        const auto at = state_->routes.find(device);
        if (at != state_->routes.end() &&
            at->second.connection->state == UcxConnection::State::Alive)
          return internal_error(fmt::format("device {} is connected already", device), "ucx");
      }
    }
    PIPER_TRY(UcxConnection * connection,
              state_->worker->connect(peer.address, peer.devices, false));
    auto lock = state_->worker->lock();
    for (size_t place = 0; place < peer.devices.size(); ++place)
      state_->routes[peer.devices[place]] = {connection, place};
  }
  return {};
}

Endpoint& UcxFabric::endpoint(DeviceIndex device) {
  const auto at = std::find_if(state_->endpoints.begin(), state_->endpoints.end(),
                               [&](const auto& e) { return e->self() == device; });
  assert(at != state_->endpoints.end());
  return **at;
}

} // namespace piper::transport
