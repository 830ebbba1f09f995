// The coordinator's decisions, input by input. Time is the test's; nobody sleeps.
#include "actors/coordinator_state.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::actors;
using namespace std::chrono_literals;

namespace {

/// A coordinator, and devices that do as the test says.
struct Job {
  CoordinatorState state;
  Time now{};
  Actions actions; ///< of the last input
  std::vector<action::Enqueue> sent;

  explicit Job(CoordinatorOptions options = {.devices = 2, .deadline = 1s})
      : state(options), devices(options.devices) {}
  uint32_t devices;

  void take(Actions more) {
    actions = std::move(more);
    for (const auto& a : actions)
      if (auto* enqueue = std::get_if<action::Enqueue>(&a))
        sent.push_back(*enqueue);
  }
  template <class T> std::vector<T> all() const {
    std::vector<T> found;
    for (const auto& a : actions)
      if (auto* t = std::get_if<T>(&a))
        found.push_back(*t);
    return found;
  }
  template <class T> T only() const {
    auto found = all<T>();
    REQUIRE(found.size() == 1);
    return found.front();
  }

  static StrategyText strategy(std::string name) { return {std::move(name), "[]", {}, {}}; }
  CompileReport plans(Epoch epoch, std::vector<DeviceIndex> loss_order = {1}) { // of one microbatch
    CompileReport report{.epoch = epoch};
    report.summary.epoch = epoch;
    report.summary.compile_seconds = 0.5;
    for (DeviceIndex d = 0; d < devices; ++d)
      report.summary.roles[d] = fmt::format("g{}", d);
    report.summary.loss_order = {std::move(loss_order)};
    report.summary.owners = {{0, 0}, {1, 1}};
    return report;
  }
  void prepare(Epoch epoch) {
    for (DeviceIndex d = 0; d < devices; ++d)
      take(state.prepared(now, {.device = d, .epoch = epoch}));
  }
  /// Every device ends the next operation; device d reports a loss of `loss` if it is `reporter`.
  Op finish(double loss = 0, DeviceIndex reporter = 1) {
    REQUIRE(!sent.empty());
    auto next = sent.front();
    sent.erase(sent.begin());
    for (DeviceIndex d : next.devices) {
      OpReport report{.device = d, .seq = next.op.seq};
      if (d == reporter)
        report.losses = {loss};
      report.bytes_sent = next.op.kind == OpKind::Migrate ? 100 : 1;
      take(state.report(now, report));
    }
    return next.op;
  }
  void fail(DeviceIndex device, uint64_t seq, Error error) {
    take(state.report(now, {.device = device, .seq = seq, .ok = false, .error = error}));
  }
  void started() {
    take(state.start(now, strategy("dp")));
    REQUIRE(only<action::Compile>().epoch == 0);
    take(state.devices_ready(now, {"main", "worker 1"}));
    take(state.compiled(now, plans(0)));
    REQUIRE(all<action::Prepare>().size() == 1);
    prepare(0);
    REQUIRE(finish().kind == OpKind::Initialize);
    REQUIRE(finish().kind == OpKind::Commit);
    REQUIRE(only<action::Started>().result.ok());
  }
};

std::vector<std::pair<OpKind, int64_t>> ops(const std::vector<action::Enqueue>& sent) {
  std::vector<std::pair<OpKind, int64_t>> list;
  for (const auto& enqueue : sent)
    list.emplace_back(enqueue.op.kind, enqueue.op.iteration);
  return list;
}
using List = std::vector<std::pair<OpKind, int64_t>>;

} // namespace

TEST_CASE("a session starts: compile, prepare all, initialize all, commit all") {
  Job job;
  job.take(job.state.start(job.now, Job::strategy("dp")));
  CHECK_FALSE(job.only<action::Compile>().from.has_value());
  SECTION("devices that have not joined are not told to prepare") {
    job.take(job.state.compiled(job.now, job.plans(0)));
    CHECK(job.all<action::Prepare>().empty());
    job.take(job.state.devices_ready(job.now, {"main", "worker 1"}));
    CHECK(job.only<action::Prepare>().epoch == 0);
  }
  SECTION("a strategy that does not compile ends it, joined or not") {
    CompileReport report{.epoch = 0, .ok = false, .error = user_error("no such tag")};
    job.take(job.state.compiled(job.now, report));
    CHECK(job.only<action::Started>().result.error().message == "no such tag");
    CHECK(job.all<action::Failed>().size() == 1);
  }
}

TEST_CASE("iterations are granted ahead, up to the window, and never beyond the run") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 5));
  CHECK(ops(job.sent) == List{{OpKind::Run, 0}, {OpKind::Run, 1}, {OpKind::Run, 2}});
  job.now += 2s;
  job.finish(4.0);
  auto step = job.only<action::StepDone>();
  CHECK(step.run == 1);
  CHECK(step.step.iteration == 0);
  CHECK(step.step.loss == 4.0);
  CHECK(step.step.seconds == 2.0);
  // The caller has not taken the step yet: the window is full.
  CHECK(ops(job.sent) == List{{OpKind::Run, 1}, {OpKind::Run, 2}});
  job.take(job.state.step_taken(job.now, 1, true));
  CHECK(ops(job.sent) == List{{OpKind::Run, 1}, {OpKind::Run, 2}, {OpKind::Run, 3}});
  job.take(job.state.step_taken(job.now, 1, true));
  for (int i = 0; i < 3; ++i) {
    job.finish();
    CHECK(job.all<action::RunDone>().empty());
  }
  job.finish();
  CHECK(job.only<action::StepDone>().step.iteration == 4);
  CHECK(job.only<action::RunDone>().result.ok());
  CHECK(job.sent.empty());
  CHECK(job.state.metrics().iterations == 5);
}

TEST_CASE("a caller's false, or stop, ends the run after what was granted") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 7, 100));
  job.finish();
  SECTION("false") {
    job.take(job.state.step_taken(job.now, 7, false));
  }
  SECTION("stop") {
    job.take(job.state.stop(job.now));
  }
  job.finish();
  job.finish();
  CHECK(job.only<action::RunDone>().run == 7);
  CHECK(job.sent.empty());
}

TEST_CASE("an iteration is done when its last device is, and in order") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 2));
  auto first = job.sent[0].op.seq, second = job.sent[1].op.seq;
  job.take(job.state.report(job.now, {.device = 0, .seq = first}));
  job.take(job.state.report(job.now, {.device = 0, .seq = second}));
  CHECK(job.actions.empty());
  job.take(job.state.report(job.now, {.device = 1, .seq = second, .losses = {2.0}}));
  CHECK(job.actions.empty());
  job.take(job.state.report(job.now, {.device = 1, .seq = first, .losses = {1.0}}));
  auto steps = job.all<action::StepDone>();
  REQUIRE(steps.size() == 2);
  CHECK(steps[0].step.loss == 1.0);
  CHECK(steps[1].step.loss == 2.0);
  // A report that comes twice changes nothing.
  job.take(job.state.report(job.now, {.device = 1, .seq = first, .losses = {9.0}}));
  CHECK(job.actions.empty());
}

TEST_CASE("every k iterations an evaluation follows, and its loss comes with the step") {
  Job job({.devices = 2, .deadline = 1s, .window = 2, .eval_every = 2, .eval_batches = 2});
  job.started();
  job.take(job.state.run(job.now, 1, 3));
  CHECK(ops(job.sent) ==
        List{{OpKind::Run, 0}, {OpKind::Run, 1}, {OpKind::Evaluate, 0}, {OpKind::Evaluate, 1}});
  job.finish(1);
  CHECK_FALSE(job.only<action::StepDone>().step.eval_loss.has_value());
  job.finish(2);
  CHECK(job.all<action::StepDone>().empty());
  job.finish(10);
  job.finish(20);
  auto step = job.only<action::StepDone>().step;
  CHECK(step.iteration == 1);
  CHECK(step.loss == 2);
  CHECK(step.eval_loss == 15);
}

TEST_CASE("a change is compiled and prepared beside the iterations, and commits at the first one "
          "that was not granted") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 100));
  job.take(job.state.apply(job.now, 2, Job::strategy("pp"), {}));
  auto compile = job.only<action::Compile>();
  CHECK(compile.epoch == 1);
  CHECK(compile.from == 0u);
  job.finish();
  job.take(job.state.step_taken(job.now, 1, true));
  CHECK(job.sent.back().op.iteration == 3); // goes on
  job.take(job.state.compiled(job.now, job.plans(1)));
  CHECK(job.only<action::Prepare>().epoch == 1);
  job.now += 750ms;
  job.prepare(1);
  job.take(job.state.step_taken(job.now, 1, true));
  CHECK(job.sent.back().op.iteration == 3); // no more grants
  for (int i = 0; i < 3; ++i)
    CHECK(job.finish().kind == OpKind::Run);
  CHECK(job.finish().kind == OpKind::Migrate);
  // Commit, and at once the iterations under the new epoch.
  REQUIRE(job.sent.size() >= 2);
  CHECK(job.sent[0].op.kind == OpKind::Commit);
  CHECK(job.sent[1].op.kind == OpKind::Run);
  CHECK(job.sent[1].op.epoch == 1);
  job.now += 250ms;
  job.finish();
  auto change = *job.only<action::ChangeDone>().result;
  CHECK(change.from == "dp");
  CHECK(change.to == "pp");
  CHECK(change.iteration == 4);
  CHECK(change.compile_seconds == 0.5);
  CHECK(change.prepare_seconds == 0.75);
  CHECK(change.pause_seconds == 0.25);
  CHECK(change.bytes_moved == 200);
  CHECK(job.only<action::Committed>().epoch == 1);
  CHECK(job.state.metrics().strategy == "pp");
}

TEST_CASE("a change is made at once when nothing runs") {
  Job job;
  job.started();
  job.take(job.state.apply(job.now, 2, Job::strategy("pp"), {}));
  job.take(job.state.compiled(job.now, job.plans(1)));
  job.prepare(1);
  CHECK(job.finish().kind == OpKind::Migrate);
  CHECK(job.finish().kind == OpKind::Commit);
  CHECK(job.only<action::ChangeDone>().result.ok());
}

TEST_CASE("a dated change is made right before its iteration") {
  Job job;
  job.started();
  job.take(job.state.apply(job.now, 2, Job::strategy("pp"), 2));
  SECTION("prepared early, it waits") {
    job.take(job.state.compiled(job.now, job.plans(1)));
    job.prepare(1);
    job.take(job.state.run(job.now, 1, 10));
    CHECK(ops(job.sent) == List{{OpKind::Run, 0}, {OpKind::Run, 1}});
    job.finish();
    job.finish();
  }
  SECTION("prepared late, the iterations wait") {
    job.take(job.state.run(job.now, 1, 10));
    CHECK(ops(job.sent) == List{{OpKind::Run, 0}, {OpKind::Run, 1}});
    job.finish();
    job.finish();
    CHECK(job.sent.empty());
    job.take(job.state.compiled(job.now, job.plans(1)));
    job.prepare(1);
  }
  SECTION("failed, the iterations go on") {
    job.take(job.state.run(job.now, 1, 10));
    job.finish();
    job.finish();
    job.take(job.state.step_taken(job.now, 1, true));
    job.take(job.state.compiled(job.now, {.epoch = 1, .ok = false, .error = user_error("bad")}));
    CHECK(job.only<action::ChangeDone>().result.error().message == "bad");
    CHECK(ops(job.sent).front() == std::pair(OpKind::Run, int64_t{2}));
    return;
  }
  CHECK(job.finish().kind == OpKind::Migrate);
  CHECK(job.finish().kind == OpKind::Commit);
  CHECK(job.only<action::ChangeDone>().result->iteration == 2);
}

TEST_CASE("an iteration that has begun is no place for a change") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 10));
  job.take(job.state.apply(job.now, 2, Job::strategy("pp"), 2));
  CHECK(job.only<action::ChangeDone>().result.error().message ==
        "the change cannot be made at iteration 2: iteration 3 is the first that has not begun");
}

TEST_CASE("changes are made in the order of their iterations") {
  Job job;
  job.started();
  job.take(job.state.apply(job.now, 1, Job::strategy("late"), 50));
  job.take(job.state.compiled(job.now, job.plans(1)));
  job.prepare(1);
  job.take(job.state.apply(job.now, 2, Job::strategy("now"), {}));
  // What was prepared for later was prepared for the wrong state.
  CHECK(job.only<action::Discard>().epoch == 1);
  CHECK(job.only<action::Compile>().epoch == 2);
  CHECK(job.only<action::Compile>().strategy.name == "now");
  job.take(job.state.compiled(job.now, job.plans(1))); // stale
  CHECK(job.actions.empty());
  job.take(job.state.compiled(job.now, job.plans(2)));
  job.prepare(2);
  job.finish();
  job.finish();
  CHECK(job.only<action::ChangeDone>().request == 2);
  auto again = job.only<action::Compile>();
  CHECK(again.epoch == 3);
  CHECK(again.from == 2u);
  CHECK(again.strategy.name == "late");
}

TEST_CASE("what fails before the commit leaves the old epoch running") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 100));
  job.take(job.state.apply(job.now, 2, Job::strategy("pp"), {}));
  std::string reason;
  SECTION("the compiler refuses") {
    job.take(job.state.compiled(job.now, {.epoch = 1, .ok = false, .error = user_error("bad")}));
    reason = "bad";
  }
  SECTION("the compiler takes too long") {
    CHECK(job.state.next_deadline() == job.now + 1s);
    job.now += 1s;
    job.take(job.state.tick(job.now));
    reason = "pp was not compiled within 1000 ms";
  }
  SECTION("a device cannot prepare") {
    job.take(job.state.compiled(job.now, job.plans(1)));
    job.take(job.state.prepared(job.now, {.device = 0, .epoch = 1}));
    job.take(job.state.prepared(
        job.now,
        {.device = 1, .epoch = 1, .ok = false, .error = {ErrorKind::OutOfMemory, "too big"}}));
    reason = "too big";
  }
  SECTION("a device does not answer") {
    job.take(job.state.compiled(job.now, job.plans(1)));
    job.take(job.state.prepared(job.now, {.device = 0, .epoch = 1}));
    job.now += 1s;
    job.take(job.state.tick(job.now));
    reason = "device 1 did not end its preparation of pp within 1000 ms";
  }
  CHECK(job.only<action::ChangeDone>().result.error().message == reason);
  CHECK(job.only<action::Discard>().epoch == 1);
  CHECK(job.all<action::Failed>().empty());
  // Late answers are dropped, and the run goes on under epoch 0.
  job.take(job.state.prepared(job.now, {.device = 1, .epoch = 1}));
  CHECK(job.actions.empty());
  CHECK(job.finish().epoch == 0);
  CHECK(job.only<action::StepDone>().step.epoch == 0);
  // An epoch is not used twice.
  job.take(job.state.apply(job.now, 3, Job::strategy("pp"), {}));
  CHECK(job.only<action::Compile>().epoch == 2);
}

TEST_CASE("a failed migration is undone: all end it, all recover, the old epoch goes on") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 100));
  job.take(job.state.apply(job.now, 2, Job::strategy("pp"), {}));
  job.take(job.state.compiled(job.now, job.plans(1)));
  job.prepare(1);
  for (int i = 0; i < 3; ++i) {
    job.finish();
    job.take(job.state.step_taken(job.now, 1, true));
  }
  REQUIRE(job.sent.size() == 1);
  auto migrate = job.sent[0].op;
  job.sent.clear();
  job.fail(0, migrate.seq, {ErrorKind::Timeout, "no answer", "device 0"});
  auto abort = job.only<action::Abort>();
  CHECK(abort.devices == std::vector<DeviceIndex>{1});
  CHECK(abort.reason.kind == ErrorKind::PeerAborted);
  CHECK(abort.reason.message == "device 0 failed: no answer");
  CHECK(job.sent.empty());
  job.fail(1, migrate.seq, {ErrorKind::PeerAborted, "device 0 failed"});
  CHECK(job.finish().kind == OpKind::Recover);
  auto done = job.only<action::ChangeDone>();
  CHECK(done.request == 2);
  CHECK(done.result.error().message == "no answer");
  CHECK(job.only<action::Discard>().epoch == 1);
  CHECK(job.sent.front().op.kind == OpKind::Run);
  CHECK(job.sent.front().op.epoch == 0);
  CHECK(job.sent.front().op.iteration == 3);
}

TEST_CASE("a failed iteration ends the session with the first cause") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 100));
  job.take(job.state.digest(job.now, 5));
  auto seq = job.sent.front().op.seq;
  SECTION("its own error waits only for the others to end") {
    job.fail(0, seq, {ErrorKind::OutOfMemory, "cap passed"});
    CHECK(job.only<action::Abort>().devices == std::vector<DeviceIndex>{0, 1});
    CHECK(job.all<action::RunDone>().empty());
    for (const auto& enqueue : std::exchange(job.sent, {}))
      for (DeviceIndex d : enqueue.devices)
        job.fail(d, enqueue.op.seq, {ErrorKind::PeerAborted, "aborted"});
    CHECK(job.only<action::RunDone>().result.error().message == "cap passed");
  }
  SECTION("an echo makes room for the cause") {
    job.fail(0, seq, {ErrorKind::PeerAborted, "device 1 has aborted"});
    job.fail(1, seq, {ErrorKind::OutOfMemory, "cap passed"});
    job.now += 1s;
    job.take(job.state.tick(job.now));
    CHECK(job.only<action::RunDone>().result.error().message == "cap passed");
  }
  SECTION("a lost process explains a broken connection") {
    job.fail(0, seq, {ErrorKind::DeviceLost, "connection reset"});
    job.now += 20ms;
    job.take(job.state.lost(job.now, {1}, {ErrorKind::DeviceLost, "worker 1 was lost"}));
    CHECK(job.only<action::RunDone>().result.error().message == "worker 1 was lost");
  }
  SECTION("an iteration that does not end") {
    job.take(job.state.report(job.now, {.device = 0, .seq = seq}));
    CHECK(job.state.next_deadline() == job.now + 2s);
    job.now += 2s;
    job.take(job.state.tick(job.now));
    CHECK(job.only<action::Abort>().devices == std::vector<DeviceIndex>{0, 1});
    job.now += 1s;
    job.take(job.state.tick(job.now));
    CHECK(job.only<action::RunDone>().result.error().message ==
          "worker 1 with device 1 did not answer: device 1 did not end its iteration 0 within "
          "2000 ms");
  }
  SECTION("a device that waited for one that hangs") {
    job.fail(0, seq, {ErrorKind::Timeout, "no message from device 1", "device 0, recv x"});
    CHECK(job.only<action::Abort>().devices == std::vector<DeviceIndex>{0, 1});
    job.now += 1s;
    job.take(job.state.tick(job.now));
    CHECK(job.only<action::RunDone>().result.error() ==
          Error{ErrorKind::Timeout,
                "worker 1 with device 1 did not answer: no message from device 1",
                "device 0, recv x"});
  }
  SECTION("a device that is behind ends what it can") {
    auto next = job.sent[1].op.seq;
    job.take(job.state.report(job.now, {.device = 0, .seq = seq}));
    job.fail(0, next, {ErrorKind::OutOfMemory, "cap passed"});
    CHECK(job.only<action::Abort>().devices == std::vector<DeviceIndex>{0});
    job.take(job.state.report(job.now, {.device = 1, .seq = seq, .losses = {3.0}}));
    CHECK(job.only<action::StepDone>().step.loss == 3.0);
    CHECK(job.only<action::Abort>().devices == std::vector<DeviceIndex>{1});
    job.now += 1s;
    job.take(job.state.tick(job.now));
    CHECK(job.only<action::RunDone>().result.error().message == "cap passed");
  }
  CHECK(job.only<action::Failed>().error == job.only<action::RunDone>().result.error());
  auto error = job.only<action::Failed>().error;
  CHECK(job.only<action::DigestDone>().result.error() == error);
  // It stays so.
  job.take(job.state.run(job.now, 9, 1));
  CHECK(job.only<action::RunDone>().result.error() == error);
  job.take(job.state.apply(job.now, 10, Job::strategy("pp"), {}));
  CHECK(job.only<action::ChangeDone>().result.error() == error);
}

TEST_CASE("a process lost while nothing runs is told by the next call") {
  Job job;
  job.started();
  job.take(job.state.lost(job.now, {1}, {ErrorKind::DeviceLost, "worker 1 was lost"}));
  CHECK(job.only<action::Abort>().devices == std::vector<DeviceIndex>{0});
  job.take(job.state.evaluate(job.now, 3));
  CHECK(job.only<action::EvaluateDone>().result.error().message == "worker 1 was lost");
}

TEST_CASE("evaluation, digest and parameters are answered between iterations") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 3));
  job.take(job.state.evaluate(job.now, 11));
  job.take(job.state.digest(job.now, 12));
  job.take(job.state.gather(job.now, 13));
  for (int i = 0; i < 3; ++i)
    job.finish();
  CHECK(job.finish(8).kind == OpKind::Evaluate);
  CHECK(*job.only<action::EvaluateDone>().result == 8);
  auto hashes = job.sent.front();
  job.sent.erase(job.sent.begin());
  REQUIRE(hashes.op.kind == OpKind::Hashes);
  job.take(job.state.report(job.now, {.device = 0, .seq = hashes.op.seq, .hashes = {{0, 77}}}));
  SECTION("whole") {
    job.take(job.state.report(job.now,
                              {.device = 1, .seq = hashes.op.seq, .hashes = {{0, 77}, {1, 88}}}));
    auto digest = *job.only<action::DigestDone>().result;
    CHECK(digest == ir::Hasher().add(uint64_t{77}).add(uint64_t{88}).finish().to_string());
  }
  SECTION("replicas that differ are a defect") {
    job.take(job.state.report(job.now,
                              {.device = 1, .seq = hashes.op.seq, .hashes = {{0, 78}, {1, 88}}}));
    CHECK(job.only<action::DigestDone>().result.error().message ==
          "devices 0 and 1 hold different values of parameter 0");
  }
  SECTION("a parameter that nobody holds is a defect") {
    job.take(job.state.report(job.now, {.device = 1, .seq = hashes.op.seq}));
    CHECK(job.only<action::DigestDone>().result.error().message ==
          "1 of 2 parameters are held by a device");
  }
  auto gather = job.finish();
  CHECK(gather.kind == OpKind::Gather);
  CHECK(gather.epoch == 1); // keys of its own
  CHECK(gather.owners.size() == 2);
  CHECK(job.only<action::GatherDone>().result.ok());
}

TEST_CASE("a timeline is that of all devices, on one axis") {
  Job job;
  job.started();
  job.take(job.state.timeline(job.now, 3));
  const auto asked = job.sent.front();
  REQUIRE(asked.op.kind == OpKind::Timeline);
  const auto answer = [&](DeviceIndex device, ir::Timeline timeline) {
    job.take(job.state.report(
        job.now, {.device = device, .seq = asked.op.seq, .timeline = std::move(timeline)}));
  };
  const auto with_span = [](DeviceIndex device, int64_t origin) {
    ir::Timeline timeline{origin, {{device, 1, "compute", {}}}, {}};
    timeline.lanes[0].spans.push_back({"F", ir::Opcode::Forward, 0, 1, 2});
    return timeline;
  };
  SECTION("whole") {
    answer(0, with_span(0, 3'000'000'000));
    answer(1, with_span(1, 2'500'000'000));
    const auto timeline = *job.only<action::TimelineDone>().result;
    CHECK(timeline.origin == 2'500'000'000);
    REQUIRE(timeline.lanes.size() == 2);
    CHECK(timeline.lanes[0].spans[0].start == 1.5);
    CHECK(timeline.lanes[1].spans[0].start == 1);
  }
  SECTION("of no iteration there is none, and the session goes on") {
    answer(0, {});
    answer(1, {});
    const Error error = job.only<action::TimelineDone>().result.error();
    CHECK(error.kind == ErrorKind::User);
    CHECK(error.message == "no iteration has been run under it yet");
    job.take(job.state.run(job.now, 4, 1));
    CHECK(job.sent.back().op.kind == OpKind::Run);
  }
}

TEST_CASE("shutting down answers everything") {
  Job job;
  job.started();
  job.take(job.state.run(job.now, 1, 3));
  job.take(job.state.apply(job.now, 2, Job::strategy("a"), 50));
  job.take(job.state.apply(job.now, 3, Job::strategy("b"), 60));
  job.take(job.state.evaluate(job.now, 4));
  job.take(job.state.shut_down({ErrorKind::Cancelled, "the session has ended"}));
  CHECK(job.all<action::ChangeDone>().size() == 2);
  CHECK(job.only<action::EvaluateDone>().request == 4);
  CHECK(job.only<action::RunDone>().result.error().kind == ErrorKind::Cancelled);
}

TEST_CASE("losses are combined over ranks in rank order, then over microbatches") {
  CHECK(combine_losses({{0.1}, {0.2}, {0.3}}) == ((0.0 + 0.1) + 0.2 + 0.3) / 3);
  CHECK(combine_losses({{1, 3}, {2, 6}}) == 3);
  CHECK(combine_losses({{0.1, 0.2}, {0.7, 0.9}}) == ((0.1 + 0.2) / 2 + (0.7 + 0.9) / 2) / 2);
}
