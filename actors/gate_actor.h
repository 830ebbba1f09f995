// The actor at the door of a session: workers join through it, and it notices when one is lost.
#pragma once

#include "actors/log.h"
#include "actors/messages.h"
#include "transport/ucx/fabric.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace piper::actors {

struct GateOptions {
  std::string version;
  Offer offer; ///< but for the number of the process
  std::string own_address;
  std::chrono::milliseconds join_timeout{};
  /// Connects this process's transport to the others.
  std::function<Result<void>(const std::vector<transport::UcxPeer>&)> connect;
  std::function<void()> all_left; ///< after a goodbye: every worker has ended or is lost
  LogPtr log;
};

class GateActor : public caf::event_based_actor {
public:
  GateActor(caf::actor_config& config, GateOptions options, caf::actor coordinator);
  caf::behavior make_behavior() override;
  void on_exit() override { coordinator_ = nullptr, workers_.clear(); }

private:
  void join(const Hello& hello);
  void ready(const std::string& address);
  void gone(const caf::actor_addr& who);
  void fail(Error error);
  void goodbye(bool ok, const Error& why);
  /// The process of a worker's actor; 0 if it has none.
  uint32_t process_of_sender(const caf::actor_addr& who) const;

  GateOptions options_;
  Roster roster_;
  caf::actor coordinator_;
  std::map<uint32_t, caf::actor> workers_; ///< by process
  bool started_ = false, leaving_ = false;
};

} // namespace piper::actors
