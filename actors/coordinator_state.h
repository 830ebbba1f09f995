// CoordinatorState: who does what next. A deterministic state machine: each input (a call of the
// façade, a report of a device, time passing) returns the actions to take, in order. It knows no
// actor, no device and no clock; the coordinator actor carries its actions out.
//
// Devices get operations (`Op`) that each carries out in order. Iterations are granted a few ahead,
// so that no device waits for a round trip between two. A change of strategy is compiled and
// prepared beside them; then the grants pause, the log drains, all devices migrate, and only when
// all have done so are they told to commit. Whatever fails before that is undone: the old epoch has
// not been touched.
#pragma once

#include "actors/protocol.h"
#include "actors/reports.h"

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace piper::actors {

using Time = std::chrono::steady_clock::time_point;

struct CoordinatorOptions {
  uint32_t devices = 1;
  std::chrono::milliseconds deadline{60'000};
  /// After a first error, how long reports that explain it better are awaited.
  std::chrono::milliseconds grace{1'000};
  int64_t window = 3; ///< iterations granted and not yet taken by the caller
  int64_t eval_every = 0;
  int64_t eval_batches = 1;
  double tokens_per_iteration = 0;
};

/// What the coordinator is to do.
namespace action {
/// Compile `strategy` and the migration from epoch `from` (none: the first epoch).
struct Compile {
  Epoch epoch = 0;
  std::optional<Epoch> from;
  StrategyText strategy;
};
/// Send every device its fragments of `epoch`.
struct Prepare {
  Epoch epoch = 0;
};
struct Enqueue {
  std::vector<DeviceIndex> devices;
  Op op;
};
/// Make the devices end what they do.
struct Abort {
  std::vector<DeviceIndex> devices;
  Error reason;
};
/// Forget `epoch`, on devices and in the compiler.
struct Discard {
  Epoch epoch = 0;
};
/// `epoch` has taken over; older ones are of no more use.
struct Committed {
  Epoch epoch = 0;
};
/// The session cannot go on.
struct Failed {
  Error error;
};

// Answers to the façade.
struct Started {
  Result<void> result;
};
struct StepDone {
  RequestId run = 0;
  StepResult step;
};
struct RunDone {
  RequestId run = 0;
  Result<void> result;
};
struct ChangeDone {
  RequestId request = 0;
  Result<Change> result;
};
struct EvaluateDone {
  RequestId request = 0;
  Result<double> result;
};
struct DigestDone {
  RequestId request = 0;
  Result<std::string> result;
};
struct TimelineDone {
  RequestId request = 0;
  Result<ir::Timeline> result;
};
/// The parameters are where device 0 gathers them.
struct GatherDone {
  RequestId request = 0;
  Result<void> result;
};
} // namespace action

using Action =
    std::variant<action::Compile, action::Prepare, action::Enqueue, action::Abort, action::Discard,
                 action::Committed, action::Failed, action::Started, action::StepDone,
                 action::RunDone, action::ChangeDone, action::EvaluateDone, action::DigestDone,
                 action::TimelineDone, action::GatherDone>;
using Actions = std::vector<Action>;

class CoordinatorState {
public:
  explicit CoordinatorState(CoordinatorOptions options);

  // Calls of the façade. Every one is answered by exactly one action of its name.
  Actions start(Time now, StrategyText strategy);
  Actions run(Time now, RequestId id, int64_t iterations); ///< one run at a time
  /// The caller has seen a step of its run; `go_on` false ends the run.
  Actions step_taken(Time now, RequestId id, bool go_on);
  Actions apply(Time now, RequestId id, StrategyText strategy, std::optional<int64_t> at);
  Actions evaluate(Time now, RequestId id);
  Actions digest(Time now, RequestId id);
  Actions timeline(Time now, RequestId id);
  Actions gather(Time now, RequestId id);
  Actions stop(Time now);
  /// Answers everything that is open with `reason`, and what comes later.
  Actions shut_down(Error reason);

  // What devices, compiler and processes report. Reports of another epoch or of an operation that
  // is not open are dropped.
  /// All workers have joined: devices can be told to prepare. `processes[d]` names d's process.
  Actions devices_ready(Time now, const std::vector<std::string>& processes);
  Actions compiled(Time now, const CompileReport& report);
  Actions prepared(Time now, const PrepareReport& report);
  Actions report(Time now, const OpReport& report);
  Actions lost(Time now, const std::vector<DeviceIndex>& devices, Error error);

  /// Does what is due. To be called at `next_deadline`, or earlier.
  Actions tick(Time now);
  std::optional<Time> next_deadline() const;

  const Metrics& metrics() const { return metrics_; }
  int64_t next_iteration() const { return next_iteration_; }

private:
  enum class Phase { Compiling, Compiled, Preparing, Prepared, Migrating, Undoing, Committing };
  enum class AskKind { Evaluate, Digest, Timeline, Gather };

  struct ChangeRequest {
    RequestId id = 0;
    StrategyText strategy;
    std::optional<int64_t> at;
    bool before(const ChangeRequest& other) const;
  };
  struct ActiveChange {
    ChangeRequest request;
    Epoch epoch = 0;
    Phase phase = Phase::Compiling;
    bool first = false; ///< the session's start: initializes instead of migrating
    Time since{};       ///< the phase began
    Time pause_began{};
    std::set<DeviceIndex> waiting; ///< to prepare
    EpochSummary summary;
    Change change;
    Error error; ///< of Undoing
  };
  struct Run {
    RequestId id = 0;
    int64_t remaining = 0; ///< not granted yet
    int64_t granted = 0;   ///< and not taken yet
    int64_t open = 0;      ///< granted, and their StepDone not sent yet
  };
  struct Ask {
    RequestId id = 0;
    AskKind kind = AskKind::Evaluate;
  };
  /// An operation that not all devices have reported.
  struct Entry {
    Op op;
    std::set<DeviceIndex> waiting;
    std::map<DeviceIndex, OpReport> reports;
    std::vector<std::vector<DeviceIndex>> loss_order; ///< as of EpochSummary
    std::optional<Ask> ask; ///< that it answers; Evaluate without one belongs to a step
    bool last = true;       ///< that answers it, or ends the step's evaluation
  };
  struct Failing {
    Error error;
    Time until;
    uint64_t seq = 0; ///< the operation that failed; those before it may end
    std::set<DeviceIndex> aborted;
  };

  Actions ask(Time now, Ask ask);
  void enqueue(Time now, Op op, std::vector<DeviceIndex> devices, std::optional<Ask> ask = {},
               bool last = true);
  void enqueue_evaluation(Time now, std::optional<Ask> ask);
  /// Completes the operations at the front that all devices have reported, up to `end`.
  void complete_front(Time now, uint64_t end = UINT64_MAX);
  void complete(Time now, Entry entry);
  void step_done(StepResult step);
  /// Starts changes, grants operations, ends runs: whatever can go on now.
  void advance(Time now);
  void start_next_change(Time now);
  void set_phase(Time now, Phase phase);
  void fail_change(Time now, Error error);
  void commit(Time now);
  void committed(Time now);
  /// A first error outside a change: end everything, and see who has the best explanation.
  void begin_failing(Time now, Error error, uint64_t seq);
  /// Ends what devices do that have come to the operation that failed.
  void abort_failing();
  /// Whether everything that could explain the failure has been heard.
  bool heard_all() const;
  /// Where nobody said why it failed: led by the devices that are still silent, and their process.
  Error blame_silent(Error error) const;
  void finish_failing(Error error);
  /// Answers everything that is open.
  void end(const Error& error);
  void refuse(const Ask& ask, const Error& error);
  void end_run(Result<void> result);
  std::vector<DeviceIndex> all_devices() const;
  std::vector<DeviceIndex> members() const;
  std::optional<Time> change_deadline() const;
  std::optional<Time> log_deadline() const;
  bool change_blocks_grants() const;
  void list_waiting_changes();
  Actions take();

  CoordinatorOptions options_;
  Actions actions_;
  Metrics metrics_;
  std::optional<EpochSummary> current_; ///< the epoch that grants name
  Epoch next_epoch_ = 0;                ///< epochs are never used twice, also not failed ones
  bool devices_ready_ = false;
  uint64_t next_seq_ = 1;
  int64_t next_iteration_ = 0;
  std::deque<Entry> log_;
  Time front_since_{}; ///< since when the front of the log is what all wait for
  Time last_end_{};    ///< of an iteration, evaluation or change
  std::deque<ChangeRequest> requests_;
  std::optional<ActiveChange> change_;
  std::optional<Run> run_;
  std::deque<Ask> asks_;
  std::optional<StepResult> held_step_; ///< done but for its evaluation
  std::vector<double> evaluation_;
  std::optional<Failing> failing_;
  std::optional<Error> failed_;
};

} // namespace piper::actors
