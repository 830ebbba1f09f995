// The log sink of a session, one call at a time.
#pragma once

#include "actors/session.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace piper::actors {

class Log {
public:
  explicit Log(LogSink sink) : sink_(std::move(sink)) {}
  void operator()(LogLevel level, const std::string& line) {
    if (!sink_)
      return;
    std::lock_guard lock(mutex_);
    sink_(level, line);
  }

private:
  std::mutex mutex_;
  LogSink sink_;
};
using LogPtr = std::shared_ptr<Log>;

} // namespace piper::actors
