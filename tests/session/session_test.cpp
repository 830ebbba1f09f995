#include "training.h"

#include <chrono>
#include <future>
#include <mutex>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;
using namespace std::chrono_literals;

TEST_CASE("iterations come in order, by steps and by runs, and the loss falls") {
  auto session = open("1f1b:2", options(2));
  auto first = session->step();
  REQUIRE(first.ok());
  CHECK(first->iteration == 0);
  CHECK(first->epoch == 0);
  CHECK(first->tokens_per_second > 0);
  std::vector<int64_t> iterations;
  double last = 0;
  REQUIRE(session
              ->run(30,
                    [&](const StepResult& step) {
                      iterations.push_back(step.iteration);
                      last = step.loss;
                      return true;
                    })
              .ok());
  REQUIRE(iterations.size() == 30);
  CHECK(iterations.front() == 1);
  CHECK(iterations.back() == 30);
  CHECK(last < first->loss);
  auto metrics = session->metrics();
  CHECK(metrics.iterations == 31);
  CHECK(metrics.loss == last);
  CHECK(metrics.strategy == "1f1b:2");
  REQUIRE(metrics.devices.size() == 2);
  CHECK(metrics.devices[1].process == "main");
  CHECK_FALSE(metrics.devices[1].role.empty());
  CHECK(metrics.devices[1].busy_seconds > 0);
  CHECK(metrics.devices[0].peak_bytes > 0);
}

TEST_CASE("every layout has the losses, the parameters and the digest of one device") {
  auto single = open("single", options(1));
  auto expected = losses(*single, 4);
  auto parameters = single->parameters();
  REQUIRE(parameters.ok());
  for (std::string strategy : {"dp:2", "1f1b:2", "gpipe:2"}) {
    INFO(strategy);
    auto session = open(strategy, options(2));
    CHECK(close(losses(*session, 4), expected));
    auto mine = session->parameters();
    REQUIRE(mine.ok());
    REQUIRE(mine->size() == parameters->size());
    for (const auto& [name, tensor] : *mine) {
      INFO(name);
      CHECK(difference(tensor, parameters->at(name)) < 1e-12);
    }
  }
  // Where sums have one order the bits are the same.
  auto a = open("1f1b:2", options(2)), b = open("gpipe:2", options(2));
  losses(*a, 3), losses(*b, 3);
  auto digest = a->parameters_digest();
  REQUIRE(digest.ok());
  CHECK(digest->size() == 32);
  CHECK(*digest == *b->parameters_digest());
  losses(*a, 1);
  CHECK(*digest != *a->parameters_digest());
}

TEST_CASE("a timeline says what each device did in the last iteration") {
  auto session = open("1f1b:2", options(2));
  CHECK(session->timeline().error().kind == ErrorKind::User); // there has been none
  losses(*session, 3);
  const auto timeline = session->timeline();
  REQUIRE(timeline.ok());
  check_timeline(*timeline);
  const auto again = session->timeline();
  const auto took = [](const ir::TimelineSpan& span) { return span.end - span.start; };
  for (size_t s = 0; s < timeline->lanes[0].spans.size(); ++s)
    CHECK(took(again->lanes[0].spans[s]) == Approx(took(timeline->lanes[0].spans[s])).margin(1e-9));
  losses(*session, 1);
  CHECK(session->timeline()->origin > timeline->origin);

  REQUIRE(session->apply(named("dp:2")).ok());
  CHECK(session->timeline().error().where == "dp:2");
  losses(*session, 1);
  CHECK(session->timeline().ok());
}

TEST_CASE("evaluation follows every k iterations, and comes when asked for") {
  auto with = options(2);
  with.eval_every = 2;
  with.eval_batches = 2;
  auto session = open("1f1b:2", with);
  std::vector<bool> evaluated;
  std::optional<double> last;
  REQUIRE(session
              ->run(4,
                    [&](const StepResult& step) {
                      evaluated.push_back(step.eval_loss.has_value());
                      last = step.eval_loss;
                      return true;
                    })
              .ok());
  CHECK(evaluated == std::vector<bool>{false, true, false, true});
  auto now = session->evaluate();
  REQUIRE(now.ok());
  CHECK(*now == *last); // nothing was trained in between
}

TEST_CASE("a run ends early by its callback or by stop, and the next goes on from there") {
  auto session = open("single", options(1));
  int64_t seen = 0;
  REQUIRE(session->run(1000, [&](const StepResult&) { return ++seen < 3; }).ok());
  CHECK(seen == 3);
  int64_t done = session->metrics().iterations;
  CHECK(done >= 3);
  CHECK(done <= 6);
  CHECK(session->step()->iteration == done);
  REQUIRE(session
              ->run(1'000'000,
                    [&](const StepResult&) {
                      session->stop();
                      return true;
                    })
              .ok());
  CHECK(session->metrics().iterations < 100);
}

TEST_CASE("what on_step throws comes out of run, and the session lives") {
  auto session = open("single", options(1));
  CHECK_THROWS_WITH(
      session->run(10, [](const StepResult&) -> bool { throw std::runtime_error("mine"); }),
      "mine");
  CHECK(session->step().ok());
}

TEST_CASE("two sessions in one process do not disturb each other") {
  auto expected = undisturbed(6);
  auto train = [] { return losses(*open("dp:2", options(2)), 6); };
  auto other = std::async(std::launch::async, train);
  auto mine = train();
  CHECK(mine == other.get());
  CHECK(close(mine, expected));
}

TEST_CASE("only the log sink hears of a session, one call at a time") {
  auto with = options(2);
  std::vector<std::string> lines;
  std::atomic<int> inside{0};
  with.log = [&](LogLevel, const std::string& line) {
    CHECK(++inside == 1);
    lines.push_back(line);
    --inside;
  };
  {
    auto session = open("dp:2", with);
    REQUIRE(session->apply(named("1f1b:2")).ok());
  }
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "epoch 1: dp:2 -> 1f1b:2 at iteration 0");
}

TEST_CASE("a session that cannot start says why") {
  auto reason = [](const ir::Strategy& strategy, SessionOptions with, Model model = mlp()) {
    auto session = Session::create(std::move(model), strategy, std::move(with));
    REQUIRE_FALSE(session.ok());
    return session.error();
  };
  SECTION("the strategy is wrong") {
    ir::Strategy strategy;
    strategy.place({{"no_such_tag", 1}}, {0});
    auto error = reason(strategy, options(1));
    CHECK(error.kind == ErrorKind::User);
    CHECK(error.message.find("no_such_tag") != std::string::npos);
  }
  SECTION("a device is out of range") {
    auto error = reason(named("dp:4"), options(2));
    CHECK(error.kind == ErrorKind::User);
  }
  SECTION("the cap is too small") {
    auto with = options(1);
    with.memory_cap = 1000;
    auto error = reason(named("single"), with);
    CHECK(error.kind == ErrorKind::OutOfMemory);
    CHECK(error.to_string().find("device 0") != std::string::npos);
  }
  SECTION("more processes than devices") {
    auto with = options(2);
    with.workers = 2;
    CHECK(reason(named("dp:2"), with).message == "2 devices cannot be shared by 3 processes");
  }
  SECTION("workers that could not know the model") {
    auto with = options(2);
    with.workers = 1;
    CHECK(reason(named("dp:2"), with).message == "workers cannot know what to build");
  }
  SECTION("a module cannot be built") {
    auto builds = std::make_shared<Builds>();
    builds->fail = true;
    CHECK(reason(named("single"), options(1), watched(builds))
              .to_string()
              .find("the disk with the weights is on fire") != std::string::npos);
  }
}

TEST_CASE("an iteration that fails ends the session with its reason") {
  auto model = mlp();
  model.data = [data = model.data](const BatchRequest& request) {
    if (request.iteration == 3)
      throw std::runtime_error("row 3 is torn");
    return data(request);
  };
  auto session = open("1f1b:2", options(2), std::move(model));
  int64_t seen = 0;
  auto begun = std::chrono::steady_clock::now();
  auto result = session->run(10, [&](const StepResult&) { return ++seen; });
  CHECK(std::chrono::steady_clock::now() - begun < 5s);
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().to_string().find("row 3 is torn") != std::string::npos);
  CHECK(seen == 3);
  CHECK(session->step().error() == result.error());
  CHECK(session->apply(named("single")).error() == result.error());
}

TEST_CASE("a destroyed session answers those who wait with Cancelled") {
  auto session = open("single", options(1));
  auto pending =
      std::async(std::launch::async, [&s = *session] { return s.apply(named("single"), 1000); });
  wait_for_changes(*session, 1);
  auto begun = std::chrono::steady_clock::now();
  session.reset();
  CHECK(std::chrono::steady_clock::now() - begun < 2s);
  CHECK(pending.get().error().kind == ErrorKind::Cancelled);
}
