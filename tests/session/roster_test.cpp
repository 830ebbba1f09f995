// Who may join, and who is told what.
#include "actors/roster.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::actors;

namespace {
Roster roster() {
  return Roster("1.0", {.processes = 3, .devices = 5, .model_name = "gpt", .model_config = "{}"});
}
} // namespace

TEST_CASE("devices are spread over the processes, the session's first") {
  CHECK(devices_of(0, 3, 5) == std::vector<DeviceIndex>{0, 1});
  CHECK(devices_of(1, 3, 5) == std::vector<DeviceIndex>{2, 3});
  CHECK(devices_of(2, 3, 5) == std::vector<DeviceIndex>{4});
  CHECK(process_of(0, 4, 4) == 0);
  CHECK(process_of(3, 4, 4) == 3);
}

TEST_CASE("workers join until all places are taken and ready") {
  auto r = roster();
  CHECK(r.join({"1.0", 11, "", ""})->process == 1);
  CHECK(r.join({"1.0", 12, "gpt", "{}"})->process == 2);
  CHECK(r.join({"1.0", 13, "", ""}).error().message == "all 2 workers of the session have joined");
  r.ready(2, "b");
  CHECK_FALSE(r.all_ready());
  r.ready(1, "a");
  CHECK(r.all_ready());
  CHECK(r.addresses("own") == std::vector<std::string>{"own", "a", "b"});
  CHECK(r.name(0) == "main");
  CHECK(r.lost(1).message == "worker 1 (pid 11) with devices 2, 3 was lost");
  CHECK(r.lost(2).message == "worker 2 (pid 12) with device 4 was lost");
  CHECK(r.lost(2).kind == ErrorKind::DeviceLost);
}

TEST_CASE("a worker of another version or model is refused, and both are named") {
  auto r = roster();
  CHECK(r.join({"2.0", 11, "", ""}).error().message ==
        "the worker is piper 2.0, the session is piper 1.0");
  CHECK(r.join({"1.0", 11, "mlp", "{}"}).error().message ==
        "the worker insists on model 'mlp', the session trains 'gpt'");
  CHECK(r.join({"1.0", 11, "gpt", "{1}"}).error().message ==
        "the worker insists on gpt with {1}, the session trains it with {}");
  // The place is still free.
  auto offer = r.join({"1.0", 14, "", ""});
  REQUIRE(offer.ok());
  CHECK(offer->process == 1);
  offer->model = ir::fingerprint("session");
  auto other = ir::fingerprint("worker");
  auto mismatch = check_model(*offer, other);
  CHECK(mismatch.error().message == "the worker's model 'gpt' is " + other.to_string() +
                                        ", the session's is " + offer->model.to_string());
  CHECK(check_model(*offer, offer->model).ok());
}

TEST_CASE("who has not joined is named, with the last refusal") {
  auto r = roster();
  REQUIRE(r.join({"1.0", 11, "", ""}).ok());
  CHECK(r.missing(std::chrono::milliseconds(500)).message ==
        "worker 1 (pid 11) (not ready), worker 2 did not join within 500 ms");
  r.leave(1, user_error("no such model"));
  auto error = r.missing(std::chrono::milliseconds(500));
  CHECK(error.kind == ErrorKind::Timeout);
  CHECK(error.message == "worker 1, worker 2 did not join within 500 ms");
  CHECK(error.hint == "the last one was refused: no such model");
  CHECK(r.join({"1.0", 15, "", ""})->process == 1);
}
