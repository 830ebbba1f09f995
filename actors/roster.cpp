#include "actors/roster.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace piper::actors {

std::vector<DeviceIndex> devices_of(uint32_t process, uint32_t processes, uint32_t devices) {
  std::vector<DeviceIndex> list;
  for (DeviceIndex d = 0; d < devices; ++d)
    if (process_of(d, processes, devices) == process)
      list.push_back(d);
  return list;
}

Roster::Roster(std::string version, Offer offer)
    : version_(std::move(version)), offer_(std::move(offer)), places_(offer_.processes - 1) {}

Result<Offer> Roster::join(const Hello& hello) {
  auto refuse = [&](std::string message, std::string hint) {
    last_refusal_ = user_error(std::move(message), fmt::format("worker with pid {}", hello.pid),
                               std::move(hint));
    return *last_refusal_;
  };
  if (hello.version != version_)
    return refuse(
        fmt::format("the worker is piper {}, the session is piper {}", hello.version, version_),
        "run the same version everywhere");
  if (!hello.model_name.empty() && hello.model_name != offer_.model_name)
    return refuse(fmt::format("the worker insists on model '{}', the session trains '{}'",
                              hello.model_name, offer_.model_name),
                  "start the worker without a model, or with the session's");
  if (!hello.model_name.empty() && hello.model_config != offer_.model_config)
    return refuse(fmt::format("the worker insists on {} with {}, the session trains it with {}",
                              hello.model_name, hello.model_config, offer_.model_config),
                  "start the worker without a model, or with the session's");
  for (size_t i = 0; i < places_.size(); ++i)
    if (!places_[i].taken) {
      places_[i] = {.taken = true, .pid = hello.pid, .address = {}};
      Offer offer = offer_;
      offer.process = static_cast<uint32_t>(i + 1);
      return offer;
    }
  return refuse(fmt::format("all {} workers of the session have joined", places_.size()),
                "start the session with more workers");
}

void Roster::ready(uint32_t process, std::string address) {
  Place& place = places_.at(process - 1);
  place.ready = true;
  place.address = std::move(address);
}

void Roster::leave(uint32_t process, std::optional<Error> why) {
  places_.at(process - 1) = {};
  if (why)
    last_refusal_ = std::move(why);
}

bool Roster::all_ready() const {
  for (const Place& place : places_)
    if (!place.ready)
      return false;
  return true;
}

std::vector<std::string> Roster::addresses(std::string own) const {
  std::vector<std::string> all{std::move(own)};
  for (const Place& place : places_)
    all.push_back(place.address);
  return all;
}

std::string Roster::name(uint32_t process) const {
  return process == 0 ? "main"
                      : fmt::format("worker {} (pid {})", process, places_.at(process - 1).pid);
}

Error Roster::lost(uint32_t process) const {
  auto devices = devices_of(process, offer_.processes, offer_.devices);
  return {ErrorKind::DeviceLost,
          fmt::format("{} with {} {} was lost", name(process),
                      devices.size() == 1 ? "device" : "devices", fmt::join(devices, ", ")),
          {},
          {}};
}

Error Roster::missing(std::chrono::milliseconds waited) const {
  std::vector<std::string> absent;
  for (size_t i = 0; i < places_.size(); ++i)
    if (!places_[i].ready)
      absent.push_back(places_[i].taken ? name(static_cast<uint32_t>(i + 1)) + " (not ready)"
                                        : fmt::format("worker {}", i + 1));
  Error error{ErrorKind::Timeout,
              fmt::format("{} did not join within {} ms", fmt::join(absent, ", "), waited.count()),
              {},
              "start them with `piper worker --join HOST:PORT`"};
  if (last_refusal_)
    error.hint = "the last one was refused: " + last_refusal_->message;
  return error;
}

Result<void> check_model(const Offer& offer, const ir::Fingerprint& built) {
  if (built == offer.model)
    return {};
  return user_error(fmt::format("the worker's model '{}' is {}, the session's is {}",
                                offer.model_name, built.to_string(), offer.model.to_string()),
                    offer.model_config, "run the same program everywhere");
}

} // namespace piper::actors
