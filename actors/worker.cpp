#include "actors/worker.h"

#include "actors/device_actor.h"
#include "actors/host_port.h"
#include "actors/log.h"
#include "actors/process_transport.h"

#include <caf/io/middleman.hpp>
#include <fmt/format.h>

#include <future>
#include <thread>
#include <unistd.h>

namespace piper::actors {
namespace {

/// How a worker ended; the first one that is told stays.
class Outcome {
public:
  void set(Result<void> result) {
    std::lock_guard lock(mutex_);
    if (!std::exchange(is_set_, true))
      promise_.set_value(std::move(result));
  }
  std::future<Result<void>> future() { return promise_.get_future(); }

private:
  std::mutex mutex_;
  bool is_set_ = false;
  std::promise<Result<void>> promise_;
};

struct WorkerContext {
  const Registry& registry;
  const WorkerOptions& options;
  std::string version;
  Outcome outcome;
  std::unique_ptr<ProcessTransport> transport; ///< outlives the device actors
};

/// Joins at the gate, builds what the offer says, starts the device actors.
class WorkerActor : public caf::event_based_actor {
public:
  WorkerActor(caf::actor_config& config, caf::actor gate, WorkerContext& context)
      : caf::event_based_actor(config), gate_(std::move(gate)), context_(context) {}

  caf::behavior make_behavior() override {
    set_default_handler(caf::drop);
    set_exception_handler([this](std::exception_ptr thrown) -> caf::error {
      try {
        std::rethrow_exception(thrown);
      } catch (const std::exception& e) {
        context_.outcome.set(internal_error(e.what(), "worker"));
      } catch (...) {
        context_.outcome.set(internal_error("unknown exception", "worker"));
      }
      return caf::exit_reason::unhandled_exception;
    });
    monitor(gate_);
    set_down_handler([this](caf::down_msg&) {
      context_.outcome.set(Error{
          ErrorKind::DeviceLost, "the session at " + context_.options.join + " was lost", {}, {}});
    });
    send(gate_, Hello{context_.version, getpid(), context_.options.model_name,
                      context_.options.model_config});
    return {
        [this](refused_atom, const Error& why) { context_.outcome.set(why); },
        [this](Offer& offer) {
          offer_ = std::move(offer);
          if (auto accepted = accept(); !accepted.ok()) {
            send(gate_, declined_atom::value, accepted.error());
            context_.outcome.set(std::move(accepted).error());
          }
        },
        [this](connect_atom, const std::vector<std::string>& addresses, caf::actor& coordinator) {
          if (auto started = start(addresses, coordinator); !started.ok()) {
            send(gate_, lost_atom::value, started.error());
            context_.outcome.set(std::move(started).error());
          }
        },
        [this](goodbye_atom, bool ok, const Error& why) {
          demonitor(gate_);
          send(gate_, bye_atom::value);
          context_.outcome.set(ok ? Result<void>() : why);
        },
    };
  }

  void on_exit() override {
    for (const caf::actor& device : devices_)
      caf::anon_send_exit(device, caf::exit_reason::user_shutdown);
    devices_.clear();
    gate_ = nullptr;
  }

private:
  /// Builds the model and opens the transport.
  Result<void> accept() {
    PIPER_TRY(Model model, context_.registry.build(offer_.model_name, offer_.model_config));
    model_ = std::make_shared<const Model>(std::move(model));
    PIPER_CHECK_OK(check_model(offer_, model_->spec->fingerprint()));
    PIPER_TRY(context_.transport, ProcessTransport::create(offer_, mine()));
    send(gate_, ready_atom::value, context_.transport->address());
    return {};
  }

  Result<void> start(const std::vector<std::string>& addresses, const caf::actor& coordinator) {
    std::vector<transport::UcxPeer> peers;
    for (uint32_t other = 0; other < addresses.size(); ++other)
      if (other != offer_.process)
        peers.push_back({addresses[other], devices_of(other, offer_.processes, offer_.devices)});
    PIPER_CHECK_OK(context_.transport->connect(peers));
    for (DeviceIndex index : mine()) {
      devices_.push_back(spawn<DeviceActor>(device_options(offer_, index), model_,
                                            context_.transport->endpoint(index), coordinator,
                                            DeviceActor::Gathered{}));
      send(gate_, device_atom::value, index, devices_.back());
    }
    return {};
  }

  std::vector<DeviceIndex> mine() const {
    return devices_of(offer_.process, offer_.processes, offer_.devices);
  }

  caf::actor gate_;
  WorkerContext& context_;
  Offer offer_;
  std::shared_ptr<const Model> model_;
  std::vector<caf::actor> devices_;
};

} // namespace

const char* version() {
  return PIPER_VERSION;
}

Result<void> run_worker_as(const std::string& version, const Registry& registry,
                           const WorkerOptions& options) {
  PIPER_TRY(auto address, parse_host_port(options.join, "join"));
  Log log(options.log);
  const auto give_up_at = std::chrono::steady_clock::now() + options.join_timeout;
  // Outlives the actors, which use it.
  WorkerContext context{registry, options, version, {}, {}};
  auto ended = context.outcome.future();
  SystemConfig config(true);
  caf::actor_system system(config);
  caf::actor gate;
  for (std::chrono::milliseconds pause{20}; !gate; pause *= 2) {
    if (auto found = system.middleman().remote_actor(address.first, address.second)) {
      gate = *found;
      break;
    }
    pause = std::min(pause, std::chrono::milliseconds(500));
    if (std::chrono::steady_clock::now() + pause > give_up_at)
      return Error{ErrorKind::Timeout,
                   fmt::format("no session answered at {} within {} ms", options.join,
                               options.join_timeout.count()),
                   "join", "start the session first, or check the address"};
    std::this_thread::sleep_for(pause);
  }
  auto worker = system.spawn<WorkerActor>(gate, std::ref(context));
  gate = nullptr;
  auto result = ended.get();
  log(result.ok() ? LogLevel::Info : LogLevel::Error,
      result.ok() ? "the session has ended" : result.error().to_string());
  caf::anon_send_exit(worker, caf::exit_reason::user_shutdown);
  return result;
}

} // namespace piper::actors

namespace piper {

Result<void> run_worker(const Registry& registry, const WorkerOptions& options) {
  return actors::run_worker_as(actors::version(), registry, options);
}

} // namespace piper
