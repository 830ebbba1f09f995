// The actor around CoordinatorState: messages in, its actions out.
#pragma once

#include "actors/coordinator_state.h"
#include "actors/messages.h"

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace piper::actors {

/// Called from the actor, one call at a time.
struct CoordinatorCallbacks {
  std::function<void(const Action&)> answer; ///< of a call of the façade
  std::function<void(const Metrics&)> metrics;
  std::function<void(const Error&)> failed; ///< the session cannot go on
  std::function<void()> ended;              ///< no answer comes any more
};

class CoordinatorActor : public caf::event_based_actor {
public:
  CoordinatorActor(caf::actor_config& config, CoordinatorOptions options, caf::actor compiler,
                   CoordinatorCallbacks callbacks);
  caf::behavior make_behavior() override;
  void on_exit() override;

private:
  void act(Actions actions);
  void prepare(Epoch epoch);
  void discard(Epoch epoch);
  /// Asks for a tick at the state's next deadline.
  void arm();

  CoordinatorState state_;
  const CoordinatorOptions options_;
  caf::actor compiler_;
  CoordinatorCallbacks callbacks_;
  std::vector<caf::actor> devices_;
  std::vector<std::string> processes_; ///< of each device
  CompileReport compiled_;             ///< of the epoch that is being prepared
  /// Of each device: what it has, and has for the committed epoch.
  std::vector<std::set<ir::Fingerprint>> known_, committed_;
  uint64_t tick_ = 0; ///< of the newest timer
  std::optional<Time> armed_;
};

} // namespace piper::actors
