#include "actors/messages.h"

#include <caf/io/middleman.hpp>

namespace piper::actors {

SystemConfig::SystemConfig(bool network) {
  // Few threads: the work is done on the devices' own. `sharing` because idle workers that steal
  // would poll.
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", size_t{2});
  set("logger.verbosity", caf::atom("quiet"));
  if (!network)
    return;
  // A killed process is noticed by its connection; a stopped one by these.
  set("middleman.workers", size_t{0});
  set("middleman.heartbeat-interval", caf::timespan{std::chrono::milliseconds(500)});
  set("middleman.connection-timeout", caf::timespan{std::chrono::milliseconds(2000)});
  load<caf::io::middleman>();
  add_message_type<Error>("piper.error");
  add_message_type<PrepareRequest>("piper.prepare");
  add_message_type<PrepareReport>("piper.prepared");
  add_message_type<Op>("piper.op");
  add_message_type<OpReport>("piper.report");
  add_message_type<Hello>("piper.hello");
  add_message_type<Offer>("piper.offer");
  add_message_type<std::vector<std::string>>("piper.strings");
}

} // namespace piper::actors
