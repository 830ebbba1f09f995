#include "actors/gate_actor.h"

namespace piper::actors {

GateActor::GateActor(caf::actor_config& config, GateOptions options, caf::actor coordinator)
    : caf::event_based_actor(config), options_(std::move(options)),
      roster_(options_.version, options_.offer), coordinator_(std::move(coordinator)) {}

caf::behavior GateActor::make_behavior() {
  set_default_handler(caf::drop);
  set_down_handler([this](caf::down_msg& down) { gone(down.source); });
  delayed_send(this, options_.join_timeout, tick_atom::value);
  return {
      [this](const Hello& hello) { join(hello); },
      [this](declined_atom, const Error& why) {
        uint32_t process = process_of_sender(caf::actor_cast<caf::actor_addr>(current_sender()));
        if (!process || started_)
          return;
        (*options_.log)(LogLevel::Warning, roster_.name(process) + " declined: " + why.to_string());
        roster_.leave(process, why);
        workers_.erase(process);
      },
      [this](ready_atom, const std::string& address) { ready(address); },
      [this](device_atom, DeviceIndex index, caf::actor& device) {
        uint32_t process = process_of_sender(caf::actor_cast<caf::actor_addr>(current_sender()));
        if (process)
          send(coordinator_, device_atom::value, index, roster_.name(process), std::move(device));
      },
      [this](lost_atom, const Error& why) { // the worker's own end, told by itself
        uint32_t process = process_of_sender(caf::actor_cast<caf::actor_addr>(current_sender()));
        if (process)
          fail(why);
      },
      [this](tick_atom) {
        if (!started_)
          fail(roster_.missing(options_.join_timeout));
      },
      [this](goodbye_atom, bool ok, const Error& why) { goodbye(ok, why); },
      [this](bye_atom) { gone(caf::actor_cast<caf::actor_addr>(current_sender())); },
  };
}

void GateActor::join(const Hello& hello) {
  auto worker = caf::actor_cast<caf::actor>(current_sender());
  if (!worker)
    return;
  auto offer = roster_.join(hello);
  if (!offer.ok()) {
    (*options_.log)(LogLevel::Warning, "refused a " + offer.error().to_string());
    send(worker, refused_atom::value, offer.error());
    return;
  }
  monitor(worker);
  workers_[offer->process] = worker;
  send(worker, *offer);
}

void GateActor::ready(const std::string& address) {
  uint32_t process = process_of_sender(caf::actor_cast<caf::actor_addr>(current_sender()));
  if (!process || started_)
    return;
  roster_.ready(process, address);
  (*options_.log)(LogLevel::Info, roster_.name(process) + " has joined");
  if (!roster_.all_ready())
    return;
  started_ = true;
  auto addresses = roster_.addresses(options_.own_address);
  std::vector<transport::UcxPeer> peers;
  for (uint32_t other = 1; other < addresses.size(); ++other)
    peers.push_back(
        {addresses[other], devices_of(other, options_.offer.processes, options_.offer.devices)});
  if (auto connected = options_.connect(peers); !connected.ok()) {
    fail(connected.error());
    return;
  }
  for (const auto& [number, worker] : workers_)
    send(worker, connect_atom::value, addresses, coordinator_);
}

void GateActor::gone(const caf::actor_addr& who) {
  uint32_t process = process_of_sender(who);
  if (!process)
    return;
  workers_.erase(process);
  if (leaving_) {
    if (workers_.empty())
      options_.all_left();
  } else if (started_) {
    send(coordinator_, lost_atom::value,
         devices_of(process, options_.offer.processes, options_.offer.devices),
         roster_.lost(process));
  } else {
    (*options_.log)(LogLevel::Warning, roster_.name(process) + " was lost before the start");
    roster_.leave(process);
  }
}

void GateActor::fail(Error error) {
  send(coordinator_, lost_atom::value, std::vector<DeviceIndex>(), std::move(error));
}

void GateActor::goodbye(bool ok, const Error& why) {
  leaving_ = true;
  for (const auto& [process, worker] : workers_)
    send(worker, goodbye_atom::value, ok, why);
  if (workers_.empty())
    options_.all_left();
}

uint32_t GateActor::process_of_sender(const caf::actor_addr& who) const {
  for (const auto& [process, worker] : workers_)
    if (worker.address() == who)
      return process;
  return 0;
}

} // namespace piper::actors
