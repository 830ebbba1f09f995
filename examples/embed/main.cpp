// Training inside a larger program: a Boost.Asio program with other work on its own io_context
// trains a small model, watches the loss, and changes the strategy from a coroutine while the
// training goes on. Everything below runs on the one thread that calls io.run().
#include "actors/session.h"
#include "examples/models/registry.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <cstdio>
#include <exception>

namespace asio = boost::asio;

namespace {

/// Stands for whatever else the program does.
asio::awaitable<void> other_work(const bool& done) {
  asio::steady_timer timer(co_await asio::this_coro::executor);
  int beats = 0;
  while (!done) {
    timer.expires_after(std::chrono::milliseconds(20));
    co_await timer.async_wait(asio::use_awaitable);
    ++beats;
  }
  std::printf("meanwhile: %d heartbeats\n", beats);
}

/// Data parallel until the loss has halved, then a pipeline.
asio::awaitable<void> train(piper::Session& session, bool& done) {
  double first = 0;
  for (int changes = 0;;) {
    auto step = (co_await session.async_step(asio::use_awaitable)).value_or_throw();
    if (step.iteration == 0)
      first = step.loss;
    if (step.iteration % 20 == 0)
      std::printf("iteration %3lld  epoch %u  loss %.5f\n", static_cast<long long>(step.iteration),
                  step.epoch, step.loss);
    if (changes == 0 && step.loss < first / 2) {
      piper::ir::Strategy pipeline;
      pipeline.name = "pipeline";
      pipeline.schedule("1f1b:2", 4);
      auto change = (co_await session.async_apply(pipeline, asio::use_awaitable)).value_or_throw();
      std::printf("%s -> %s before iteration %lld: paused %.1f ms, moved %llu bytes\n",
                  change.from.c_str(), change.to.c_str(), static_cast<long long>(change.iteration),
                  1e3 * change.pause_seconds, static_cast<unsigned long long>(change.bytes_moved));
      ++changes;
    }
    if (step.iteration == 199)
      break;
  }
  done = true;
}

} // namespace

int main() try {
  // The embedding program owns main(), the io_context and the output.
  piper::ir::Strategy strategy;
  strategy.name = "data parallel";
  strategy.schedule("dp:2");
  piper::SessionOptions options;
  options.devices = 2;
  options.optimizer.lr = 3e-3;
  auto model = piper::models::make_mlp(R"({"layers": 4, "d_hidden": 64, "batch": 32})");
  auto session =
      piper::Session::create(std::move(model).value_or_throw(), strategy, options).value_or_throw();

  asio::io_context io;
  bool done = false;
  auto rethrow = [&done](std::exception_ptr failure) {
    done = true;
    if (failure)
      std::rethrow_exception(failure);
  };
  asio::co_spawn(io, other_work(done), rethrow);
  asio::co_spawn(io, train(*session, done), rethrow);
  io.run();
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
