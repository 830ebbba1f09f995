// The asynchronous forms with each kind of completion token.
#include "training.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <future>
#include <thread>

#include <catch2/catch.hpp>

namespace asio = boost::asio;
using namespace piper;
using namespace piper::test;

TEST_CASE("a coroutine trains, changes the strategy and stays on its executor") {
  auto session = open("single", options(2));
  asio::io_context io;
  std::vector<double> all;
  int elsewhere = 0;
  auto here = std::this_thread::get_id();
  auto train = [&]() -> asio::awaitable<void> {
    for (int i = 0; i < 3; ++i) {
      auto step = co_await session->async_step(asio::use_awaitable);
      elsewhere += std::this_thread::get_id() != here;
      all.push_back(step->loss);
    }
    auto change = co_await session->async_apply(named("1f1b:2"), asio::use_awaitable);
    elsewhere += std::this_thread::get_id() != here;
    CHECK(change.ok());
    auto run = co_await session->async_run(
        3,
        [&](const StepResult& step) {
          all.push_back(step.loss);
          return true;
        },
        asio::use_awaitable);
    elsewhere += std::this_thread::get_id() != here;
    CHECK(run.ok());
  };
  bool done = false;
  asio::co_spawn(io, train(), [&](std::exception_ptr error) {
    CHECK_FALSE(error);
    done = true;
  });
  io.run();
  CHECK(done);
  CHECK(elsewhere == 0);
  CHECK(close(all, undisturbed(6)));
}

TEST_CASE("futures and plain callbacks") {
  auto session = open("single", options(1));
  std::future<Result<StepResult>> step = session->async_step(asio::use_future);
  CHECK(step.get()->iteration == 0);
  std::promise<int64_t> seen;
  session->async_step([&](Result<StepResult> result) { seen.set_value(result->iteration); });
  CHECK(seen.get_future().get() == 1);
  CHECK(session->async_apply(named("single"), 2, asio::use_future).get()->iteration == 2);
}

TEST_CASE("handlers may be move-only, and run on their associated executor") {
  auto session = open("single", options(1));
  asio::io_context io;
  bool called = false;
  auto here = std::this_thread::get_id();
  session->async_step(
      asio::bind_executor(io, [&, only = std::make_unique<int>(7)](Result<StepResult> result) {
        called = result.ok() && *only == 7 && std::this_thread::get_id() == here;
      }));
  io.run(); // has work until the handler has run
  CHECK(called);
}

TEST_CASE("blocking calls are allowed in a handler") {
  auto session = open("single", options(1));
  std::promise<int64_t> seen;
  session->async_step([&](Result<StepResult>) { seen.set_value(session->step()->iteration); });
  CHECK(seen.get_future().get() == 1);
}
