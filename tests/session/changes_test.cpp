// The strategy changes while the session trains: the losses stay those of an undisturbed run.
#include "training.h"

#include <future>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;
using namespace std::chrono_literals;

namespace {

/// Trains `iterations`, applying from on_step right after the first one.
std::vector<double> train_and_apply(Session& session, int64_t iterations,
                                    const std::function<void()>& apply) {
  std::vector<double> all;
  auto result = session.run(iterations, [&](const StepResult& step) {
    all.push_back(step.loss);
    if (all.size() == 1)
      apply();
    return true;
  });
  if (!result.ok())
    FAIL(result.error().to_string());
  return all;
}

} // namespace

TEST_CASE("a change mid-run keeps the losses") {
  auto expected = undisturbed(12);
  auto session = open("dp:2", options(2));
  Change change;
  auto all = train_and_apply(*session, 12, [&] {
    auto done = session->apply(named("1f1b:2"));
    REQUIRE(done.ok());
    change = *done;
  });
  CHECK(close(all, expected));
  CHECK(change.from == "dp:2");
  CHECK(change.to == "1f1b:2");
  CHECK(change.epoch == 1);
  CHECK(change.iteration >= 1);
  CHECK(change.iteration <= 4);
  CHECK(change.compile_seconds > 0);
  CHECK(change.prepare_seconds > 0);
  CHECK(change.pause_seconds > 0);
  auto metrics = session->metrics();
  CHECK(metrics.strategy == "1f1b:2");
  REQUIRE(metrics.changes.size() == 1);
}

TEST_CASE("state that has to move is counted") {
  auto session = open("1f1b:2", options(2));
  losses(*session, 2);
  auto change = session->apply(named("dp:2"));
  REQUIRE(change.ok());
  CHECK(change->bytes_moved > 0);
  CHECK(change->iteration == 2);
  CHECK(close(losses(*session, 4), [] {
    auto all = undisturbed(6);
    return std::vector<double>(all.begin() + 2, all.end());
  }()));
}

TEST_CASE("a dated change is made right before its iteration") {
  auto session = open("single", options(2));
  auto ask = [&](const char* strategy, int64_t at) { return session->apply(named(strategy), at); };
  auto first = std::async(std::launch::async, ask, "dp:2", 9);
  auto second = std::async(std::launch::async, ask, "1f1b:2", 5);
  wait_for_changes(*session, 2); // the run must not overtake them
  const std::vector<WaitingChange> waiting = session->metrics().waiting;
  CHECK(waiting[0].to == "1f1b:2");
  CHECK(waiting[0].at == 5);
  CHECK(waiting[1].to == "dp:2");
  std::vector<uint32_t> epochs;
  std::vector<double> all;
  REQUIRE(session
              ->run(12,
                    [&](const StepResult& step) {
                      epochs.push_back(step.epoch);
                      all.push_back(step.loss);
                      return true;
                    })
              .ok());
  auto late = first.get(), early = second.get();
  REQUIRE(early.ok());
  REQUIRE(late.ok());
  CHECK(early->iteration == 5);
  CHECK(late->iteration == 9);
  CHECK(late->from == "1f1b:2");
  CHECK(session->metrics().waiting.empty());
  for (size_t i = 0; i < epochs.size(); ++i)
    CHECK(epochs[i] == (i < 5 ? 0 : i < 9 ? early->epoch : late->epoch));
  CHECK(close(all, undisturbed(12)));
  auto too_late = session->apply(named("single"), 3);
  CHECK(too_late.error().message == "the change cannot be made at iteration 3: iteration 12 is the "
                                    "first that has not begun");
}

TEST_CASE("a change that fails leaves the old plan undisturbed") {
  auto builds = std::make_shared<Builds>();
  auto with = options(2);
  with.deadline = 2s;
  auto session = open("1f1b:2", with, watched(builds));
  std::string reason;
  auto all = train_and_apply(*session, 8, [&] {
    Result<Change> change = Error{};
    SECTION("a bad directive") {
      ir::Strategy strategy;
      strategy.name = "bad.json";
      strategy.place({{"no_such_tag", 1}}, {0});
      strategy.directives[0].origin = {"bad.json", 7};
      change = session->apply(strategy);
      reason = "bad.json:7";
    }
    SECTION("a device cannot prepare") {
      builds->fail = true;
      change = session->apply(named("dp:2"));
      reason = "the disk with the weights is on fire";
    }
    SECTION("a device does not answer in time") {
      builds->sleep_ms = 1500;
      change = session->apply(named("dp:2"));
      reason = "did not end its preparation of dp:2 within 2000 ms";
    }
    REQUIRE_FALSE(change.ok());
    INFO(change.error().to_string());
    CHECK(change.error().to_string().find(reason) != std::string::npos);
    builds->fail = false;
    builds->sleep_ms = 0;
  });
  CHECK(all == undisturbed(8, "1f1b:2")); // to the last bit
  CHECK(session->metrics().changes.empty());
  CHECK(session->metrics().epoch == 0);
  // And it can still change.
  auto change = session->apply(named("dp:2"));
  if (!change.ok())
    FAIL(change.error().to_string());
  CHECK(change->epoch == 2);
}

TEST_CASE("a change that would pass the cap is refused, and the old plan goes on") {
  const std::string wide =
      R"({"layers": 6, "d_in": 8, "d_hidden": 256, "d_out": 4, "batch": 8, "dtype": "float64"})";
  // A pipeline of two keeps half of about 2.6 MiB of parameters a device, with gradients and two
  // moments; data parallel all of it.
  int64_t half = 0;
  {
    auto session = open("1f1b:2", options(2), mlp(wide));
    losses(*session, 3);
    for (const auto& device : session->metrics().devices)
      half = std::max(half, device.peak_bytes);
  }
  auto with = options(2);
  with.memory_cap = half + half / 2;
  auto session = open("1f1b:2", with, mlp(wide));
  auto before = losses(*session, 3);
  auto change = session->apply(named("dp:2"));
  REQUIRE_FALSE(change.ok());
  CHECK(change.error().kind == ErrorKind::OutOfMemory);
  auto after = losses(*session, 3);
  auto other = open("1f1b:2", options(2), mlp(wide));
  CHECK(losses(*other, 3) == before);
  CHECK(losses(*other, 3) == after);
}

TEST_CASE("many changes, one after the other and at once") {
  auto session = open("single", options(2));
  std::vector<std::future<Result<Change>>> changes;
  auto all = train_and_apply(*session, 40, [&] {
    for (const char* next : {"dp:2", "1f1b:2", "gpipe:2", "single"})
      changes.push_back(
          std::async(std::launch::async, [&, next] { return session->apply(named(next)); }));
  });
  for (auto& change : changes) {
    auto done = change.get();
    if (!done.ok())
      FAIL(done.error().to_string());
  }
  CHECK(close(all, undisturbed(40)));
  CHECK(session->metrics().changes.size() == 4);
}
