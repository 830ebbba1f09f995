// Session: the façade. A model trained under a strategy on devices in this process and in workers,
// with the strategy changed while it runs. See examples/embed for a program that uses it.
//
// Threads: all members may be called from any thread; at most one `step`/`run` at a time (a second
// one waits). `apply` may be called while `run` is in progress, also from `on_step`: that is what
// it is for. A session owns every thread it uses; none exists before `create` or after the
// destructor. After an iteration has failed (OutOfMemory, DeviceLost, …) every later call returns
// that error.
#pragma once

#include "actors/executor/device.h"
#include "actors/reports.h"
#include "compiler/frontend/model.h"
#include "ir/strategy.h"
#include "ir/timeline.h"
#include "transport/throttled/link.h"

#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/executor_work_guard.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper {

enum class LogLevel { Debug, Info, Warning, Error };
/// Called from any of the session's threads, one call at a time. Nothing else is ever printed.
using LogSink = std::function<void(LogLevel, const std::string& line)>;

/// Builds a model by name in a worker process from its JSON configuration.
class Registry {
public:
  using Factory = std::function<Result<Model>(const std::string& config_json)>;
  Registry& add(std::string name, Factory factory);
  /// Unknown name: a User error that lists the known ones.
  Result<Model> build(const std::string& name, const std::string& config_json) const;
  std::vector<std::string> names() const;

private:
  std::map<std::string, Factory> factories_;
};

enum class TransportKind { Auto, Loopback, UcxSharedMemory, UcxTcp };

struct SessionOptions {
  uint32_t devices = 1;
  /// Workers that join before training starts. Device d lives in process d * (workers + 1) /
  /// devices, this process being the first.
  uint32_t workers = 0;
  std::string listen = "127.0.0.1:0"; ///< where workers join; port 0: a free one
  /// Called by `create`, in its thread, once workers can join at the address and before it waits
  /// for them: the moment to start them. An error ends `create`.
  std::function<Result<void>(const std::string& address)> on_listening;
  /// What workers build: a name in their registry and its configuration.
  std::string model_name, model_config;
  TransportKind transport = TransportKind::Auto; ///< Auto: loopback in a process, UCX between them
  transport::Link link; ///< every device sends through one as slow as this; default: unlimited
  bool overlap = true;  ///< false: a device does one thing at a time, to see what overlap is worth
  int threads_per_device = 1;
  int64_t memory_cap = 0;        ///< bytes a device; 0: none
  std::string offload_directory; ///< of the files that `offload` moves to, in every process; empty:
                                 ///< the system's for temporary files
  uint64_t seed = 1;
  executor::OptimizerSpec optimizer;
  int64_t eval_every = 0; ///< iterations between evaluations; 0: none
  int64_t eval_batches = 1;
  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds deadline{60'000}; ///< of every wait in an iteration or a change
  std::string control;                        ///< HOST:PORT of the control page; empty: none
  LogSink log;
};

class Session {
public:
  /// Compiles, starts the device actors, waits for `options.workers` to join, prepares and
  /// initializes epoch 0. Errors: the strategy's, Timeout naming the workers that are missing,
  /// a port in use, a cap too small, …
  static Result<std::unique_ptr<Session>> create(Model model, ir::Strategy strategy,
                                                 SessionOptions options);
  /// Ends what is in progress with Cancelled and says goodbye to workers, for which it waits at
  /// most a second. Not to be called from `on_step` or a handler.
  ~Session();

  /// "127.0.0.1:41234": where workers join and, if asked for, the control page answers; empty if
  /// they don't. Also logged, the former before `create` waits for workers.
  std::string listen_address() const;
  std::string control_address() const;

  Result<StepResult> step();
  /// `iterations` steps; devices run up to three ahead of `on_step`, which is called in order from
  /// the calling thread (of `async_run`: one of the session's). Returning false ends the run early
  /// (no error) once the iterations have ended that had begun. A change applied meanwhile takes
  /// effect at an iteration boundary.
  Result<void> run(int64_t iterations, const std::function<bool(const StepResult&)>& on_step = {});

  /// Compiles and prepares `strategy` beside the running iterations, moves the state, switches at
  /// the next boundary, or right before iteration `at` if given (it must not have begun). Returns
  /// when it is committed. On an error the old plan goes on undisturbed. Several changes are made
  /// in the order of their iterations.
  Result<Change> apply(ir::Strategy strategy, std::optional<int64_t> at = std::nullopt);

  Result<double> evaluate(); ///< mean loss on held-out rows, at the next boundary

  /// A hash of all parameters in model order, the same for any layout; at the next boundary.
  Result<std::string> parameters_digest();
  /// What each device did when in the last iteration before the next boundary. An error before the
  /// first iteration under the strategy. compiler/simulate/render.h draws it.
  Result<ir::Timeline> timeline();
  /// All parameters by name, gathered to this process; at the next boundary.
  Result<std::map<std::string, at::Tensor>> parameters();

  Metrics metrics() const;
  /// Ends a `run` in progress once the iterations have ended that had begun.
  void stop();

  // The same with a Boost.Asio completion token (callback, use_future, use_awaitable, …). Handlers
  // may be move-only. They run on their associated executor; those without one, on a thread of the
  // session.
  template <class Token> auto async_step(Token&& token) {
    return initiate<void(Result<StepResult>)>(
        [this](auto done) { post([this, done]() mutable { done(step()); }); },
        std::forward<Token>(token));
  }
  template <class Token>
  auto async_apply(ir::Strategy strategy, std::optional<int64_t> at, Token&& token) {
    return initiate<void(Result<Change>)>(
        [this, strategy = std::move(strategy), at](auto done) mutable {
          post([this, done, strategy = std::move(strategy), at]() mutable {
            done(apply(std::move(strategy), at));
          });
        },
        std::forward<Token>(token));
  }
  template <class Token> auto async_apply(ir::Strategy strategy, Token&& token) {
    return async_apply(std::move(strategy), std::nullopt, std::forward<Token>(token));
  }
  template <class Token>
  auto async_run(int64_t iterations, std::function<bool(const StepResult&)> on_step,
                 Token&& token) {
    return initiate<void(Result<void>)>(
        [this, iterations, on_step = std::move(on_step)](auto done) mutable {
          post([this, done, iterations, on_step = std::move(on_step)]() mutable {
            done(run(iterations, on_step));
          });
        },
        std::forward<Token>(token));
  }

private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  /// Runs `work` on a thread of the session.
  void post(std::function<void()> work);

  template <class Signature, class Start, class Token>
  static auto initiate(Start start, Token&& token) {
    return boost::asio::async_initiate<Token, Signature>(
        [start = std::move(start)](auto handler) mutable {
          // The handler's executor must stay alive and busy until it has been called.
          auto shared = std::make_shared<decltype(handler)>(std::move(handler));
          auto guard = boost::asio::make_work_guard(boost::asio::get_associated_executor(*shared));
          start([shared, guard](auto result) mutable {
            auto executor = guard.get_executor();
            boost::asio::dispatch(executor, [shared, result = std::move(result)]() mutable {
              std::move (*shared)(std::move(result));
            });
            guard.reset();
          });
        },
        token);
  }

  std::unique_ptr<Impl> impl_;
};

struct WorkerOptions {
  std::string join; ///< HOST:PORT of the session
  /// If not empty, the model the worker insists on; another one is refused.
  std::string model_name, model_config;
  std::chrono::milliseconds join_timeout{60'000};
  LogSink log;
};

/// Joins a session and serves the devices that it assigns, until the session says goodbye (ok) or
/// is lost (DeviceLost). The body of `piper worker`.
Result<void> run_worker(const Registry& registry, const WorkerOptions& options);

} // namespace piper
