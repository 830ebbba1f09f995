// The control page without a session behind it.
#include "actors/control.h"

#include <thread>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::actors;

namespace {
ControlVerbs verbs() {
  ControlVerbs verbs;
  verbs.status = [] { return std::string(R"({"iterations":3})"); };
  verbs.stop = [] {};
  verbs.apply = [](std::string, std::string, ControlVerbs::Done done) { done(std::string("{}")); };
  verbs.timeline = [](ControlVerbs::Done done) { done(std::string("[]")); };
  return verbs;
}
} // namespace

TEST_CASE("the page answers status, timeline, apply and stop") {
  auto with = verbs();
  std::string got;
  bool stopped = false;
  with.stop = [&] { stopped = true; };
  with.apply = [&](std::string name, std::string body, ControlVerbs::Done done) {
    got = name + ": " + body;
    std::thread([done] { done(std::string(R"({"epoch":1})")); }).detach();
  };
  auto page = ControlPage::open("127.0.0.1:0", with);
  REQUIRE(page.ok());
  auto at = (*page)->address();
  CHECK(*control_request(at, "status") == R"({"iterations":3})");
  CHECK(*control_request(at, "apply", "[1, 2]", "two.json") == R"({"epoch":1})");
  CHECK(got == "two.json: [1, 2]");
  CHECK(control_request(at, "apply", "[3]").ok());
  CHECK(got == "control: [3]");
  CHECK(*control_request(at, "timeline") == "[]");
  CHECK(control_request(at, "stop").ok());
  CHECK(stopped);
}

TEST_CASE("a change that fails comes back as it was") {
  auto with = verbs();
  Error error{ErrorKind::OutOfMemory, "too big", "device 1", "use more"};
  with.apply = [&](std::string, std::string, ControlVerbs::Done done) { done(error); };
  with.timeline = [&](ControlVerbs::Done done) { done(error); };
  auto page = ControlPage::open("127.0.0.1:0", with);
  CHECK(control_request((*page)->address(), "timeline").error() == error);
  CHECK(control_request((*page)->address(), "apply", "[]").error() == error);
}

TEST_CASE("asking in vain") {
  CHECK(control_request("127.0.0.1:1", "jump").error().message == "there is no verb 'jump'");
  CHECK(control_request("localhost", "status").error().message == "'localhost' is no address");
  auto nobody = control_request("127.0.0.1:1", "status");
  CHECK(nobody.error().kind == ErrorKind::DeviceLost);
  CHECK(nobody.error().message == "no answer from 127.0.0.1:1: Connection refused");
}

TEST_CASE("a page that is slow is not waited for without end") {
  auto with = verbs();
  std::function<void(Result<std::string>)> later;
  with.apply = [&](std::string, std::string, ControlVerbs::Done done) { later = std::move(done); };
  auto page = ControlPage::open("127.0.0.1:0", with);
  auto answer =
      control_request((*page)->address(), "apply", "[]", {}, std::chrono::milliseconds(100));
  CHECK(answer.error().kind == ErrorKind::Timeout);
  later(std::string("too late")); // nobody listens, and nothing breaks
  page = internal_error("ended");
  later(std::string("much too late"));
}

TEST_CASE("a port in use is named") {
  auto first = ControlPage::open("127.0.0.1:0", verbs());
  auto at = (*first)->address();
  auto second = ControlPage::open(at, verbs());
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().kind == ErrorKind::User);
  CHECK(second.error().message == "cannot listen at " + at + ": Address already in use");
}

TEST_CASE("metrics and changes as JSON") {
  Metrics metrics;
  metrics.iterations = 2;
  metrics.strategy = "dp:2";
  metrics.waiting.push_back({"1f1b:2", 9});
  metrics.devices.push_back({.device = 0, .process = "main", .role = "g0", .peak_bytes = 5});
  CHECK(to_json(metrics) ==
        R"({"iterations":2,"loss":0.0,"epoch":0,"strategy":"dp:2","changes":[],)"
        R"("waiting":[{"to":"1f1b:2","at":9}],)"
        R"("devices":[{"device":0,"process":"main","role":"g0","peak_bytes":5,"offloaded_bytes":0,)"
        R"("busy_seconds":0.0,"idle_seconds":0.0,"bytes_sent":0}]})");
}
