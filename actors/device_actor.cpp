#include "actors/device_actor.h"

namespace piper::actors {

DeviceActor::DeviceActor(caf::actor_config& config, executor::DeviceOptions options,
                         std::shared_ptr<const Model> model, transport::Endpoint& endpoint,
                         caf::actor coordinator, Gathered gathered)
    : caf::event_based_actor(config) {
  RunnerCallbacks callbacks;
  callbacks.prepared = [coordinator](PrepareReport report) {
    caf::anon_send(coordinator, std::move(report));
  };
  callbacks.done = [coordinator](OpReport report) {
    caf::anon_send(coordinator, std::move(report));
  };
  callbacks.gathered = std::move(gathered);
  runner_ = std::make_unique<DeviceRunner>(std::move(options), std::move(model), endpoint,
                                           std::move(callbacks));
}

caf::behavior DeviceActor::make_behavior() {
  set_default_handler(caf::drop);
  return {
      [this](PrepareRequest& request) { runner_->prepare(std::move(request)); },
      [this](Op& op) { runner_->enqueue(std::move(op)); },
      [this](discard_atom, Epoch epoch) { runner_->discard(epoch); },
      [this](abort_atom, const Error& reason) { runner_->abort(reason); },
  };
}

void DeviceActor::on_exit() {
  runner_.reset();
}

executor::DeviceOptions device_options(const Offer& offer, DeviceIndex index) {
  return {.index = index,
          .threads = offer.threads,
          .memory_cap = offer.memory_cap,
          .offload_directory = offer.offload_directory,
          .seed = offer.seed,
          .optimizer = offer.optimizer,
          .deadline = std::chrono::milliseconds(offer.deadline_ms),
          .spin = offer.spin};
}

} // namespace piper::actors
