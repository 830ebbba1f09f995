// The actor that owns a device. Routes messages to a DeviceRunner, and what the runner reports to
// the coordinator.
#pragma once

#include "actors/device_runner.h"
#include "actors/messages.h"

#include <memory>

namespace piper::actors {

class DeviceActor : public caf::event_based_actor {
public:
  using Gathered = std::function<void(std::map<std::string, at::Tensor>)>;
  /// `endpoint` outlives the actor. `gathered`: see RunnerCallbacks.
  DeviceActor(caf::actor_config& config, executor::DeviceOptions options,
              std::shared_ptr<const Model> model, transport::Endpoint& endpoint,
              caf::actor coordinator, Gathered gathered);

  caf::behavior make_behavior() override;
  void on_exit() override; ///< aborts what runs and waits for its end

private:
  std::unique_ptr<DeviceRunner> runner_;
};

/// What device `index` of the job gets.
executor::DeviceOptions device_options(const Offer& offer, DeviceIndex index);

} // namespace piper::actors
