// How the devices of one process reach each other and those of other processes: loopback within,
// UCX between, and before both a slow link if one is asked for.
#pragma once

#include "actors/roster.h"
#include "actors/session.h"
#include "transport/loopback/fabric.h"
#include "transport/router.h"
#include "transport/throttled/endpoint.h"
#include "transport/ucx/fabric.h"

#include <memory>
#include <string>
#include <vector>

namespace piper::actors {

class ProcessTransport {
public:
  /// Of what is offered: the processes, the kind, the link, and whether waits may spin. `devices`
  /// are this process's.
  static Result<std::unique_ptr<ProcessTransport>> create(const Offer& offer,
                                                          std::vector<ir::DeviceIndex> devices);

  /// What others need to connect; empty without UCX.
  std::string address() const;
  Result<void> connect(const std::vector<transport::UcxPeer>& peers);
  /// Of a device of this process; lives as long as this.
  transport::Endpoint& endpoint(ir::DeviceIndex device);

private:
  ProcessTransport() = default;
  std::unique_ptr<transport::LoopbackFabric> loopback_; ///< null: UCX also within the process
  std::unique_ptr<transport::UcxFabric> ucx_;           ///< null: alone
  std::vector<std::unique_ptr<transport::RoutedEndpoint>> routed_; ///< none: one of the two is null
  std::vector<std::unique_ptr<transport::ThrottledEndpoint>> throttled_; ///< none: no link
};

/// Whether waits may spin: not where devices outnumber the cores of this machine.
bool may_spin(size_t devices);

} // namespace piper::actors
