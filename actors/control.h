// The control page: how a running session is asked from outside. HTTP, for trusted networks:
//   GET  /status   200, the state as JSON
//   GET  /timeline 200, the last iteration in the Trace Event Format (chrome://tracing, Perfetto);
//                  400 before the first
//   POST /apply    body: a strategy's JSON, which reports and errors call by the header field
//                  Strategy-Name; 200 with the change as JSON once it is committed, 400 with the
//                  reason if it is not
//   POST /stop     200; the run ends after the current iteration
// Anything else is 404; an error's body is {"kind", "message", "where", "hint"}.
#pragma once

#include "actors/reports.h"
#include "ir/result.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace piper {

/// Asks the page at `host_port` and returns the body. `verb`: "status", "timeline", "apply" (with
/// the body and its name) or "stop". An error of the session comes back as it was; no session
/// there, or none that answers within `timeout`, is Timeout or DeviceLost and names the address.
Result<std::string> control_request(const std::string& host_port, const std::string& verb,
                                    const std::string& body = {}, const std::string& name = {},
                                    std::chrono::milliseconds timeout = std::chrono::minutes(10));

namespace actors {

/// What the page does when asked. Called from the page's thread; must return at once.
struct ControlVerbs {
  /// To be called later, from any thread, with the answer's body; nobody hears it once the page has
  /// ended.
  using Done = std::function<void(Result<std::string>)>;
  std::function<std::string()> status;
  std::function<void(Done)> timeline;
  std::function<void(std::string name, std::string json, Done)> apply;
  std::function<void()> stop;
};

/// Serves until destroyed, on a thread of its own.
class ControlPage {
public:
  /// A User error that names HOST:PORT if it cannot listen there.
  static Result<std::unique_ptr<ControlPage>> open(const std::string& host_port,
                                                   ControlVerbs verbs);
  ~ControlPage();
  std::string address() const; ///< with the port that it got

private:
  struct Impl;
  explicit ControlPage(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

std::string to_json(const Metrics& metrics);
std::string to_json(const Change& change);

} // namespace actors
} // namespace piper
