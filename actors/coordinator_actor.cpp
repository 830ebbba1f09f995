#include "actors/coordinator_actor.h"

#include "actors/plan_fragments.h"

#include <exception>
#include <type_traits>

namespace piper::actors {
namespace {
// The actor's own now() is declared by CAF but not exported.
Time clock_now() {
  return std::chrono::steady_clock::now();
}
} // namespace

CoordinatorActor::CoordinatorActor(caf::actor_config& config, CoordinatorOptions options,
                                   caf::actor compiler, CoordinatorCallbacks callbacks)
    : caf::event_based_actor(config), state_(options), options_(options),
      compiler_(std::move(compiler)), callbacks_(std::move(callbacks)), devices_(options.devices),
      processes_(options.devices), known_(options.devices), committed_(options.devices) {}

caf::behavior CoordinatorActor::make_behavior() {
  set_default_handler(caf::drop);
  // A defect here must not leave a caller without an answer.
  set_exception_handler([this](std::exception_ptr thrown) -> caf::error {
    std::string what = "unknown exception";
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      what = e.what();
    } catch (...) {
    }
    for (const Action& action : state_.shut_down(internal_error(what, "coordinator")))
      callbacks_.answer(action);
    return caf::exit_reason::unhandled_exception;
  });
  return {
      [this](start_atom, StrategyText& s) { act(state_.start(clock_now(), std::move(s))); },
      [this](run_atom, RequestId id, int64_t n) { act(state_.run(clock_now(), id, n)); },
      [this](taken_atom, RequestId id, bool go_on) {
        act(state_.step_taken(clock_now(), id, go_on));
      },
      [this](apply_atom, RequestId id, StrategyText& strategy, int64_t at) {
        act(state_.apply(clock_now(), id, std::move(strategy),
                         at < 0 ? std::nullopt : std::optional(at)));
        callbacks_.metrics(state_.metrics()); // what is waiting can be seen before it is answered
      },
      [this](evaluate_atom, RequestId id) { act(state_.evaluate(clock_now(), id)); },
      [this](digest_atom, RequestId id) { act(state_.digest(clock_now(), id)); },
      [this](timeline_atom, RequestId id) { act(state_.timeline(clock_now(), id)); },
      [this](gather_atom, RequestId id) { act(state_.gather(clock_now(), id)); },
      [this](stop_atom) { act(state_.stop(clock_now())); },
      [this](shutdown_atom, const Error& reason) { act(state_.shut_down(reason)); },
      [this](device_atom, DeviceIndex index, const std::string& process, caf::actor& actor) {
        if (index >= devices_.size())
          return;
        devices_[index] = std::move(actor);
        processes_[index] = process;
        for (const caf::actor& device : devices_)
          if (!device)
            return;
        act(state_.devices_ready(clock_now(), processes_));
      },
      [this](lost_atom, const std::vector<DeviceIndex>& devices, const Error& error) {
        act(state_.lost(clock_now(), devices, error));
      },
      [this](CompileReport& report) {
        compiled_ = std::move(report);
        act(state_.compiled(clock_now(), compiled_));
      },
      [this](const PrepareReport& report) { act(state_.prepared(clock_now(), report)); },
      [this](const OpReport& report) { act(state_.report(clock_now(), report)); },
      [this](tick_atom, uint64_t tick) {
        if (tick != tick_)
          return;
        armed_.reset();
        act(state_.tick(clock_now()));
      },
  };
}

void CoordinatorActor::on_exit() {
  devices_.clear();
  compiler_ = nullptr;
  callbacks_.ended();
}

void CoordinatorActor::act(Actions actions) {
  bool answered = false;
  for (Action& any : actions)
    std::visit(
        [&](auto& action) {
          using T = std::decay_t<decltype(action)>;
          if constexpr (std::is_same_v<T, action::Compile>) {
            send(compiler_, compile_atom::value, action.epoch,
                 action.from ? int64_t{*action.from} : int64_t{-1}, std::move(action.strategy));
          } else if constexpr (std::is_same_v<T, action::Prepare>) {
            prepare(action.epoch);
          } else if constexpr (std::is_same_v<T, action::Enqueue>) {
            for (DeviceIndex device : action.devices)
              send(devices_[device], action.op);
          } else if constexpr (std::is_same_v<T, action::Abort>) {
            for (DeviceIndex device : action.devices)
              send(devices_[device], abort_atom::value, action.reason);
          } else if constexpr (std::is_same_v<T, action::Discard>) {
            discard(action.epoch);
          } else if constexpr (std::is_same_v<T, action::Committed>) {
            for (size_t d = 0; d < devices_.size(); ++d)
              known_[d] = committed_[d] = names(compiled_.plans[d]);
            send(compiler_, keep_atom::value, action.epoch);
          } else if constexpr (std::is_same_v<T, action::Failed>) {
            callbacks_.failed(action.error);
          } else {
            if (!std::exchange(answered, true))
              callbacks_.metrics(state_.metrics());
            callbacks_.answer(any);
          }
        },
        any);
  arm();
}

void CoordinatorActor::prepare(Epoch epoch) {
  for (size_t d = 0; d < devices_.size(); ++d) {
    PrepareRequest request;
    request.epoch = epoch;
    request.plans = compiled_.plans[d];
    auto wanted = names(request.plans);
    for (const PlanFragment& fragment : compiled_.fragments)
      if (wanted.count(fragment.id) && !known_[d].count(fragment.id))
        request.fragments.push_back(fragment);
    known_[d].merge(wanted);
    send(devices_[d], std::move(request));
  }
  compiled_.fragments.clear();
}

void CoordinatorActor::discard(Epoch epoch) {
  send(compiler_, discard_atom::value, epoch);
  for (size_t d = 0; d < devices_.size(); ++d)
    if (devices_[d]) {
      send(devices_[d], discard_atom::value, epoch);
      known_[d] = committed_[d];
    }
}

void CoordinatorActor::arm() {
  auto due = state_.next_deadline();
  // An early tick does no harm: only a deadline that moved forward needs a new timer.
  if (!due || (armed_ && *armed_ <= *due))
    return;
  armed_ = due;
  delayed_send(this, std::max(*due - clock_now(), Time::duration::zero()), tick_atom::value,
               ++tick_);
}

} // namespace piper::actors
