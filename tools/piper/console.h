// What the program shows while it trains: a bar on a terminal, plain lines elsewhere, and on stderr
// the log, if wanted. Thread-safe.
#pragma once

#include "actors/session.h"

#include <mutex>
#include <string>

namespace piper::cli {

class Console {
public:
  /// Without `verbose` the log is not shown: each failure in it is also the result of some call.
  explicit Console(bool verbose);
  ~Console();

  /// Valid as long as the console is.
  LogSink log_sink();
  /// One iteration of `total` is done.
  void progress(const StepResult& step, int64_t total);
  /// A line on stdout, above the bar.
  void line(const std::string& text);

private:
  void clear_bar();

  const bool verbose_;
  const bool terminal_;
  std::mutex mutex_;
  bool bar_shown_ = false;
  double seconds_per_iteration_ = 0; ///< smoothed, for the time left
};

} // namespace piper::cli
