#include "actors/process_transport.h"

#include <thread>

namespace piper::actors {

Result<std::unique_ptr<ProcessTransport>>
ProcessTransport::create(const Offer& offer, std::vector<ir::DeviceIndex> devices) {
  const auto kind = static_cast<TransportKind>(offer.transport);
  const bool alone = offer.processes == 1;
  std::unique_ptr<ProcessTransport> self(new ProcessTransport);
  const bool everywhere = kind == TransportKind::UcxSharedMemory || kind == TransportKind::UcxTcp;
  if (kind == TransportKind::Loopback && !alone)
    return user_error("loopback joins the devices of one process only", "transport",
                      "leave the transport to the session, or ask for shared memory or TCP");
  const auto spin_time = offer.spin ? transport::kDefaultSpin : std::chrono::nanoseconds(0);
  // With several processes UCX carries what leaves the process; one process uses it only if asked.
  const bool use_loopback = !(alone && everywhere);
  if (use_loopback)
    self->loopback_ = std::make_unique<transport::LoopbackFabric>(
        devices, transport::LoopbackOptions{.spin = spin_time});
  if (!alone || everywhere) {
    transport::UcxOptions options;
    options.devices = devices;
    options.spin = spin_time;
    if (kind == TransportKind::UcxSharedMemory)
      options.mode = transport::UcxMode::SharedMemory;
    else if (kind == TransportKind::UcxTcp)
      options.mode = transport::UcxMode::Tcp;
    PIPER_TRY(self->ucx_, transport::UcxFabric::create(std::move(options)));
  }
  if (self->loopback_ && self->ucx_)
    for (ir::DeviceIndex device : devices)
      self->routed_.push_back(std::make_unique<transport::RoutedEndpoint>(
          self->loopback_->endpoint(device), self->ucx_->endpoint(device), devices));
  const transport::Link link{std::chrono::nanoseconds(offer.link_latency_ns), offer.link_bandwidth};
  std::vector<std::unique_ptr<transport::ThrottledEndpoint>> throttled;
  if (!link.unlimited())
    for (ir::DeviceIndex device : devices)
      throttled.push_back(std::make_unique<transport::ThrottledEndpoint>(self->endpoint(device),
                                                                         offer.devices, link));
  self->throttled_ = std::move(throttled);
  return self;
}

std::string ProcessTransport::address() const {
  return ucx_ ? ucx_->address() : std::string();
}

Result<void> ProcessTransport::connect(const std::vector<transport::UcxPeer>& peers) {
  return ucx_ ? ucx_->connect(peers) : Result<void>();
}

transport::Endpoint& ProcessTransport::endpoint(ir::DeviceIndex device) {
  for (auto& throttled : throttled_)
    if (throttled->self() == device)
      return *throttled;
  for (auto& routed : routed_)
    if (routed->self() == device)
      return *routed;
  return loopback_ ? loopback_->endpoint(device) : ucx_->endpoint(device);
}

bool may_spin(size_t devices) {
  return devices <= std::thread::hardware_concurrency();
}

} // namespace piper::actors
