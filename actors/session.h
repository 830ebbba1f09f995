// Session: the façade. A model trained under a strategy on devices in this process and in workers,
// with the strategy changed while it runs. See examples/embed for a program that uses it.
//
// Threads: all members may be called from any thread; at most one `step`/`run` at a time (a second
// one waits). `apply` may be called while `run` is in progress: that is what it is for.
// A session owns every thread it uses; none exists before `create` or after the destructor.
#pragma once

#include "actors/executor/device.h"
#include "compiler/frontend/model.h"
#include "ir/strategy.h"

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
  /// What workers build: a name in their registry and its configuration.
  std::string model_name, model_config;
  TransportKind transport = TransportKind::Auto; ///< Auto: loopback in a process, UCX between them
  int threads_per_device = 1;
  int64_t memory_cap = 0; ///< bytes a device; 0: none
  uint64_t seed = 1;
  executor::OptimizerSpec optimizer;
  int64_t eval_every = 0; ///< iterations between evaluations; 0: none
  int64_t eval_batches = 1;
  std::chrono::milliseconds join_timeout{60'000};
  std::chrono::milliseconds deadline{60'000}; ///< of every wait in an iteration or a change
  std::string control;                        ///< HOST:PORT of the control page; empty: none
  LogSink log;
};

struct StepResult {
  int64_t iteration = 0;
  double loss = 0; ///< mean over the global batch, before the update
  double grad_norm = 0;
  double seconds = 0;           ///< from the previous iteration's end to this one's
  double tokens_per_second = 0; ///< elements of the first model input per second
  uint32_t epoch = 0;
  std::optional<double> eval_loss; ///< where this iteration was followed by an evaluation
};

/// A committed change of strategy.
struct Change {
  std::string from, to;  ///< names of the strategies
  uint32_t epoch = 0;    ///< the new one
  int64_t iteration = 0; ///< the first iteration under it
  double compile_seconds = 0;
  double prepare_seconds = 0;
  double pause_seconds = 0; ///< end of the last iteration before to start of the first after
  uint64_t bytes_moved = 0;
};

struct DeviceReport {
  uint32_t device = 0;
  std::string process; ///< "main", "worker 1 (pid 123)"
  std::string role;    ///< in the current epoch; "" if idle
  int64_t peak_bytes = 0;
  double busy_seconds = 0; ///< since the session started
  double idle_seconds = 0;
  uint64_t bytes_sent = 0;
};

struct Metrics {
  int64_t iterations = 0;
  double loss = 0;
  uint32_t epoch = 0;
  std::string strategy;
  std::vector<Change> changes;
  std::vector<DeviceReport> devices;
};

class Session {
public:
  /// Compiles, starts the device actors, waits for `options.workers` to join, prepares and
  /// initializes epoch 0. Errors: the strategy's, Timeout naming the workers that are missing,
  /// a port in use, a cap too small, …
  static Result<std::unique_ptr<Session>> create(Model model, ir::Strategy strategy,
                                                 SessionOptions options);
  ~Session(); ///< says goodbye to workers; never waits longer than a second

  /// "127.0.0.1:41234": where workers join and, if asked for, the control page answers.
  std::string listen_address() const;
  std::string control_address() const;

  Result<StepResult> step();
  /// `iterations` steps; devices run ahead within them. `on_step` is called in order, from a thread
  /// of the session; returning false ends the run early (no error). A change applied meanwhile
  /// takes effect at an iteration boundary.
  Result<void> run(int64_t iterations, const std::function<bool(const StepResult&)>& on_step = {});

  /// Compiles and prepares `strategy` beside the running iterations, moves the state, switches at
  /// the next boundary (or right before iteration `at`, if given and still ahead). Returns when it
  /// is committed. On an error the old plan goes on undisturbed.
  Result<Change> apply(ir::Strategy strategy, std::optional<int64_t> at = std::nullopt);

  Result<double> evaluate(); ///< mean loss on held-out rows, at the next boundary

  /// A hash of all parameters in model order, the same for any layout; at the next boundary.
  Result<std::string> parameters_digest();
  /// All parameters by name, gathered to this process; at the next boundary.
  Result<std::map<std::string, at::Tensor>> parameters();

  Metrics metrics() const;
  /// Ends a `run` in progress after the current iteration.
  void stop();

  // The same with a Boost.Asio completion token (callback, use_future, use_awaitable, …). Handlers
  // run on the token's associated executor.
  template <class Token> auto async_step(Token&& token) {
    return initiate<void(Result<StepResult>)>(
        [this](auto done) { post([this, done]() mutable { done(step()); }); },
        std::forward<Token>(token));
  }
  template <class Token> auto async_apply(ir::Strategy strategy, Token&& token) {
    return initiate<void(Result<Change>)>(
        [this, strategy = std::move(strategy)](auto done) mutable {
          post([this, done, strategy = std::move(strategy)]() mutable {
            done(apply(std::move(strategy)));
          });
        },
        std::forward<Token>(token));
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
