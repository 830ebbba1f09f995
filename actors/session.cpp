#include "actors/session.h"

#include "actors/compiler_actor.h"
#include "actors/control.h"
#include "actors/coordinator_actor.h"
#include "actors/device_actor.h"
#include "actors/gate_actor.h"
#include "actors/host_port.h"
#include "actors/process_transport.h"
#include "actors/threads.h"
#include "actors/worker.h"
#include "compiler/simulate/render.h"

#include <caf/io/middleman.hpp>
#include <fmt/format.h>

#include <condition_variable>
#include <deque>

namespace piper {
namespace {

using namespace actors;

/// The calls that wait for the coordinator, and what it has answered.
class Answers {
public:
  void open(RequestId id) {
    std::lock_guard lock(mutex_);
    open_[id];
  }
  void close(RequestId id) {
    std::lock_guard lock(mutex_);
    open_.erase(id);
    changed_.notify_all();
  }
  void put(RequestId id, Action action) {
    std::lock_guard lock(mutex_);
    if (auto found = open_.find(id); found != open_.end()) {
      found->second.push_back(std::move(action));
      changed_.notify_all();
    }
  }
  /// No more answers will come.
  void end() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  /// Waits; none if there will be none. The coordinator answers everything, by deadlines of its
  /// own.
  std::optional<Action> next(RequestId id) {
    std::unique_lock lock(mutex_);
    auto& queue = open_.at(id);
    changed_.wait(lock, [&] { return ended_ || !queue.empty(); });
    if (queue.empty())
      return std::nullopt;
    Action action = std::move(queue.front());
    queue.pop_front();
    return action;
  }
  void wait_until_ended() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_; });
  }
  void wait_until_all_closed() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_.empty(); });
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<RequestId, std::deque<Action>> open_;
  bool ended_ = false;
};

std::optional<RequestId> request_of(const Action& action) {
  return std::visit(
      [](const auto& a) -> std::optional<RequestId> {
        if constexpr (requires { a.run; })
          return a.run;
        else if constexpr (requires { a.request; })
          return a.request;
        else if constexpr (std::is_same_v<std::decay_t<decltype(a)>, action::Started>)
          return 0;
        else
          return std::nullopt;
      },
      action);
}

Error ended_error() {
  return {ErrorKind::Cancelled, "the session has ended", {}, {}};
}

Result<void> check(const Model& model, const SessionOptions& options) {
  if (!model.spec)
    return user_error("the model is empty", "session", "build it with ModelBuilder");
  if (options.devices < 1)
    return user_error("a session needs a device", "devices");
  if (options.workers >= options.devices)
    return user_error(fmt::format("{} devices cannot be shared by {} processes", options.devices,
                                  options.workers + 1),
                      "workers", "give every process at least one device");
  if (options.workers > 0 && options.model_name.empty())
    return user_error("workers cannot know what to build", "model_name",
                      "name a model of their registry");
  if (options.eval_every < 0 || options.eval_batches < 1)
    return user_error("an evaluation needs a batch", "eval_batches");
  if (options.deadline.count() <= 0 || options.join_timeout.count() <= 0)
    return user_error("a deadline must be positive", "deadline");
  return {};
}

} // namespace

struct Session::Impl {
  Impl(Model m, SessionOptions o)
      : model(std::make_shared<const Model>(std::move(m))), options(std::move(o)),
        log(std::make_shared<Log>(options.log)) {}
  ~Impl();

  Result<void> start(const ir::Strategy& strategy);
  Result<void> open_gate(const Offer& offer);
  Result<void> open_control(Session& session);
  Offer offer() const;
  CoordinatorCallbacks callbacks();

  /// A call of the façade that is open: what it sends, and what comes back.
  class Call {
  public:
    explicit Call(Impl& impl) : impl_(impl), id_(impl.next_id++) { impl.answers.open(id_); }
    ~Call() { impl_.answers.close(id_); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    template <class... Parts> void send(Parts&&... parts) {
      caf::anon_send(impl_.coordinator, std::forward<Parts>(parts)...);
    }
    RequestId id() const { return id_; }
    /// The result in the answer of type T.
    template <class T> auto result() -> decltype(T::result) {
      while (auto action = impl_.answers.next(id_))
        if (auto* answer = std::get_if<T>(&*action))
          return std::move(answer->result);
      return ended_error();
    }

  private:
    Impl& impl_;
    const RequestId id_;
  };

  std::shared_ptr<const Model> model;
  SessionOptions options;
  LogPtr log;
  Answers answers;
  std::atomic<RequestId> next_id{1};
  std::mutex run_mutex, gather_mutex;

  mutable std::mutex board_mutex;
  Metrics metrics;
  std::map<std::string, at::Tensor> gathered;

  std::mutex left_mutex;
  std::condition_variable left_changed;
  bool all_left = false;

  std::string listen_address;
  // In the order in which they may be built; torn down in the destructor.
  std::unique_ptr<ProcessTransport> transport;
  std::unique_ptr<SystemConfig> config;
  std::unique_ptr<caf::actor_system> system;
  caf::actor compiler, coordinator, gate;
  std::vector<caf::actor> devices;
  std::unique_ptr<WorkThreads> threads = std::make_unique<WorkThreads>();
  std::unique_ptr<ControlPage> control;
};

Offer Session::Impl::offer() const {
  Offer offer;
  offer.processes = options.workers + 1;
  offer.devices = options.devices;
  offer.model_name = options.model_name;
  offer.model_config = options.model_config;
  offer.model = model->spec->fingerprint();
  offer.transport = static_cast<uint8_t>(options.transport);
  offer.spin = may_spin(options.devices);
  offer.link_latency_ns = options.link.latency.count();
  offer.link_bandwidth = options.link.bandwidth;
  offer.threads = options.threads_per_device;
  offer.memory_cap = options.memory_cap;
  offer.offload_directory = options.offload_directory;
  offer.seed = options.seed;
  offer.deadline_ms = options.deadline.count();
  offer.optimizer = options.optimizer;
  return offer;
}

CoordinatorCallbacks Session::Impl::callbacks() {
  CoordinatorCallbacks callbacks;
  callbacks.answer = [this](const Action& action) {
    if (auto* change = std::get_if<action::ChangeDone>(&action)) {
      if (change->result.ok())
        (*log)(LogLevel::Info,
               fmt::format("epoch {}: {} -> {} at iteration {}", change->result->epoch,
                           change->result->from, change->result->to, change->result->iteration));
      else
        (*log)(LogLevel::Warning, "the change was not made: " + change->result.error().to_string());
    }
    if (auto id = request_of(action))
      answers.put(*id, action);
  };
  callbacks.metrics = [this](const Metrics& now) {
    std::lock_guard lock(board_mutex);
    metrics = now;
  };
  callbacks.failed = [this](const Error& error) {
    (*log)(LogLevel::Error, error.to_string());
    if (gate)
      caf::anon_send(gate, goodbye_atom::value, false, error);
  };
  callbacks.ended = [this] { answers.end(); };
  return callbacks;
}

Result<void> Session::Impl::open_gate(const Offer& what) {
  PIPER_TRY(auto address, parse_host_port(options.listen, "listen"));
  GateOptions gate_options;
  gate_options.version = version();
  gate_options.offer = what;
  gate_options.own_address = transport->address();
  gate_options.join_timeout = options.join_timeout;
  gate_options.connect = [this](const std::vector<transport::UcxPeer>& peers) {
    return transport->connect(peers);
  };
  gate_options.all_left = [this] {
    std::lock_guard lock(left_mutex);
    all_left = true;
    left_changed.notify_all();
  };
  gate_options.log = log;
  gate = system->spawn<GateActor>(std::move(gate_options), coordinator);
  auto port = system->middleman().publish(gate, address.second, address.first.c_str(), true);
  if (!port)
    return user_error(fmt::format("cannot listen at {}: the port is in use or the address is not "
                                  "this machine's",
                                  options.listen),
                      "listen", "choose another port, or port 0 for a free one");
  listen_address = fmt::format("{}:{}", address.first, *port);
  (*log)(LogLevel::Info, "workers join at " + listen_address);
  return options.on_listening ? options.on_listening(listen_address) : Result<void>{};
}

Result<void> Session::Impl::start(const ir::Strategy& strategy) {
  const Offer what = offer();
  const auto mine = devices_of(0, what.processes, what.devices);
  PIPER_TRY(transport, ProcessTransport::create(what, mine));
  config = std::make_unique<SystemConfig>(options.workers > 0);
  system = std::make_unique<caf::actor_system>(*config);

  std::vector<ir::StateKind> kinds{ir::StateKind::Param};
  for (ir::StateKind kind : options.optimizer.state())
    if (kind != ir::StateKind::Param)
      kinds.push_back(kind);
  compiler = system->spawn<CompilerActor, caf::detached>(
      model->spec, CompileTarget{.devices = options.devices,
                                 .kinds = kinds,
                                 .memory_cap = options.memory_cap,
                                 .overlap = options.overlap});

  CoordinatorOptions how;
  how.devices = options.devices;
  how.deadline = options.deadline;
  how.eval_every = options.eval_every;
  how.eval_batches = options.eval_batches;
  if (!model->spec->inputs.empty())
    how.tokens_per_iteration = static_cast<double>(
        model->spec->value(model->spec->inputs[0]).type.numel(model->spec->batch));
  coordinator = system->spawn<CoordinatorActor>(how, compiler, callbacks());

  if (options.workers > 0)
    PIPER_CHECK_OK(open_gate(what));
  answers.open(0);
  caf::anon_send(coordinator, start_atom::value, StrategyText::of(strategy));
  for (DeviceIndex index : mine) {
    DeviceActor::Gathered gather;
    if (index == 0)
      gather = [this](std::map<std::string, at::Tensor> all) {
        std::lock_guard lock(board_mutex);
        gathered = std::move(all);
      };
    devices.push_back(system->spawn<DeviceActor>(device_options(what, index), model,
                                                 transport->endpoint(index), coordinator, gather));
    caf::anon_send(coordinator, device_atom::value, index, std::string("main"), devices.back());
  }
  auto started = answers.next(0);
  answers.close(0);
  if (!started)
    return ended_error();
  return std::get<action::Started>(*started).result;
}

Result<void> Session::Impl::open_control(Session& session) {
  if (options.control.empty())
    return {};
  ControlVerbs verbs;
  verbs.status = [&session] { return to_json(session.metrics()); };
  verbs.stop = [&session] { session.stop(); };
  verbs.timeline = [&session](ControlVerbs::Done done) {
    session.post([&session, done = std::move(done)] {
      const auto timeline = session.timeline();
      done(timeline.ok() ? Result<std::string>(compiler::render_trace(*timeline))
                         : timeline.error());
    });
  };
  verbs.apply = [&session](std::string name, std::string json, ControlVerbs::Done done) {
    session.post(
        [&session, name = std::move(name), json = std::move(json), done = std::move(done)] {
          auto strategy = ir::Strategy::parse(json, name);
          if (!strategy.ok())
            return done(std::move(strategy).error());
          auto change = session.apply(*std::move(strategy));
          done(change.ok() ? Result<std::string>(to_json(*change)) : std::move(change).error());
        });
  };
  PIPER_TRY(control, ControlPage::open(options.control, std::move(verbs)));
  (*log)(LogLevel::Info, "control at " + control->address());
  return {};
}

Session::Impl::~Impl() {
  if (coordinator)
    caf::anon_send(coordinator, shutdown_atom::value, ended_error());
  answers.wait_until_all_closed();
  threads.reset();
  control.reset();
  if (gate) {
    caf::anon_send(gate, goodbye_atom::value, true, Error{});
    std::unique_lock lock(left_mutex);
    left_changed.wait_for(lock, std::chrono::seconds(1), [&] { return all_left; });
  }
  if (coordinator) {
    caf::anon_send_exit(coordinator, caf::exit_reason::user_shutdown);
    answers.wait_until_ended(); // it uses the gate, and calls back to here
  }
  for (const caf::actor& device : devices)
    caf::anon_send_exit(device, caf::exit_reason::user_shutdown);
  for (const caf::actor& actor : {gate, compiler})
    if (actor)
      caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  devices.clear();
  gate = compiler = coordinator = nullptr;
  system.reset(); // waits for the actors, which use the transport
}

Result<std::unique_ptr<Session>> Session::create(Model model, ir::Strategy strategy,
                                                 SessionOptions options) {
  PIPER_CHECK_OK(check(model, options));
  std::unique_ptr<Session> session(
      new Session(std::make_unique<Impl>(std::move(model), std::move(options))));
  PIPER_CHECK_OK(session->impl_->start(strategy));
  PIPER_CHECK_OK(session->impl_->open_control(*session));
  return session;
}

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

std::string Session::listen_address() const {
  return impl_->listen_address;
}
std::string Session::control_address() const {
  return impl_->control ? impl_->control->address() : std::string();
}

Result<StepResult> Session::step() {
  std::optional<StepResult> result;
  PIPER_CHECK_OK(run(1, [&](const StepResult& step) {
    result = step;
    return true;
  }));
  if (!result) // stopped before it began
    return Error{ErrorKind::Cancelled, "the iteration was stopped before it began", {}, {}};
  return *result;
}

Result<void> Session::run(int64_t iterations,
                          const std::function<bool(const StepResult&)>& on_step) {
  if (iterations < 0)
    return user_error(fmt::format("{} iterations cannot be run", iterations), "run");
  Impl::Call call(*impl_);
  std::lock_guard one_at_a_time(impl_->run_mutex);
  call.send(run_atom::value, call.id(), iterations);
  bool go_on = true;
  std::exception_ptr thrown;
  while (auto action = impl_->answers.next(call.id())) {
    if (auto* done = std::get_if<action::RunDone>(&*action)) {
      if (thrown)
        std::rethrow_exception(thrown);
      return std::move(done->result);
    }
    auto* step = std::get_if<action::StepDone>(&*action);
    if (!step)
      continue;
    try {
      if (go_on && on_step)
        go_on = on_step(step->step);
    } catch (...) {
      thrown = std::current_exception();
      go_on = false;
    }
    call.send(taken_atom::value, call.id(), go_on);
  }
  return ended_error();
}

Result<Change> Session::apply(ir::Strategy strategy, std::optional<int64_t> at) {
  if (at && *at < 0)
    return user_error(fmt::format("there is no iteration {}", *at), "apply");
  Impl::Call call(*impl_);
  call.send(apply_atom::value, call.id(), StrategyText::of(strategy), at.value_or(-1));
  return call.result<action::ChangeDone>();
}

Result<double> Session::evaluate() {
  Impl::Call call(*impl_);
  call.send(evaluate_atom::value, call.id());
  return call.result<action::EvaluateDone>();
}

Result<std::string> Session::parameters_digest() {
  Impl::Call call(*impl_);
  call.send(digest_atom::value, call.id());
  return call.result<action::DigestDone>();
}

Result<ir::Timeline> Session::timeline() {
  Impl::Call call(*impl_);
  call.send(timeline_atom::value, call.id());
  return call.result<action::TimelineDone>();
}

Result<std::map<std::string, at::Tensor>> Session::parameters() {
  Impl::Call call(*impl_);
  std::lock_guard one_at_a_time(impl_->gather_mutex);
  call.send(gather_atom::value, call.id());
  PIPER_CHECK_OK(call.result<action::GatherDone>());
  std::lock_guard lock(impl_->board_mutex);
  return std::move(impl_->gathered);
}

Metrics Session::metrics() const {
  std::lock_guard lock(impl_->board_mutex);
  return impl_->metrics;
}

void Session::stop() {
  caf::anon_send(impl_->coordinator, stop_atom::value);
}

void Session::post(std::function<void()> work) {
  impl_->threads->post(std::move(work));
}

} // namespace piper
