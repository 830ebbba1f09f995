#include "actors/coordinator_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace piper::actors {
namespace {

double seconds(Time from, Time to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Errors that say "someone else failed": a better explanation may be on its way.
bool is_echo(ErrorKind kind) {
  return kind == ErrorKind::PeerAborted || kind == ErrorKind::DeviceLost ||
         kind == ErrorKind::Timeout;
}

std::string list(const std::set<DeviceIndex>& devices) {
  std::string text = devices.size() == 1 ? "device " : "devices ";
  for (auto it = devices.begin(); it != devices.end(); ++it)
    text += fmt::format("{}{}", it == devices.begin() ? "" : ", ", *it);
  return text;
}

Error peer_failed(DeviceIndex device, const Error& error) {
  return {ErrorKind::PeerAborted,
          fmt::format("device {} failed: {}", device, error.message),
          error.where,
          {}};
}

Error timeout(const std::set<DeviceIndex>& devices, std::string_view what,
              std::chrono::milliseconds limit) {
  return {ErrorKind::Timeout,
          fmt::format("{} did not end its {} within {} ms", list(devices), what, limit.count()),
          list(devices),
          {}};
}

/// "worker 1 (pid 123) with devices 1, 2 and device 0": of the session's own process just the
/// device.
std::string name_holders(const std::set<DeviceIndex>& devices,
                         const std::vector<DeviceReport>& reports) {
  std::map<std::string, std::set<DeviceIndex>> by_process;
  for (DeviceIndex device : devices)
    by_process[reports[device].process].insert(device);
  std::vector<std::string> names;
  for (const auto& [process, held] : by_process)
    names.push_back(process.starts_with("worker") ? fmt::format("{} with {}", process, list(held))
                                                  : list(held));
  return fmt::format("{}", fmt::join(names, " and "));
}

} // namespace

bool CoordinatorState::ChangeRequest::before(const ChangeRequest& other) const {
  return at.value_or(-1) < other.at.value_or(-1);
}

CoordinatorState::CoordinatorState(CoordinatorOptions options) : options_(options) {
  for (DeviceIndex d = 0; d < options_.devices; ++d)
    metrics_.devices.push_back({.device = d});
}

// The façade.

Actions CoordinatorState::start(Time now, StrategyText strategy) {
  requests_.push_back({0, std::move(strategy), std::nullopt});
  start_next_change(now);
  return take();
}

Actions CoordinatorState::run(Time now, RequestId id, int64_t iterations) {
  if (failed_) {
    actions_.push_back(action::RunDone{id, *failed_});
    return take();
  }
  run_ = Run{id, iterations, 0, 0};
  if (log_.empty())
    last_end_ = now;
  advance(now);
  return take();
}

Actions CoordinatorState::step_taken(Time now, RequestId id, bool go_on) {
  if (!run_ || run_->id != id)
    return {};
  --run_->granted;
  if (!go_on)
    run_->remaining = 0;
  advance(now);
  return take();
}

Actions CoordinatorState::apply(Time now, RequestId id, StrategyText strategy,
                                std::optional<int64_t> at) {
  if (failed_) {
    actions_.push_back(action::ChangeDone{id, *failed_});
    return take();
  }
  if (at && *at < next_iteration_) {
    actions_.push_back(action::ChangeDone{
        id, user_error(fmt::format("the change cannot be made at iteration {}: iteration {} is "
                                   "the first that has not begun",
                                   *at, next_iteration_),
                       strategy.name, "name a later iteration, or none")});
    return take();
  }
  ChangeRequest request{id, std::move(strategy), at};
  // A change that is waiting for its iteration makes room for one that comes before it.
  if (change_ && !change_->first && change_->phase <= Phase::Prepared &&
      request.before(change_->request)) {
    actions_.push_back(action::Discard{change_->epoch});
    requests_.push_front(std::move(change_->request));
    change_.reset();
  }
  auto after = std::find_if(requests_.begin(), requests_.end(),
                            [&](const ChangeRequest& other) { return request.before(other); });
  requests_.insert(after, std::move(request));
  advance(now);
  return take();
}

Actions CoordinatorState::evaluate(Time now, RequestId id) {
  return ask(now, {id, AskKind::Evaluate});
}
Actions CoordinatorState::digest(Time now, RequestId id) {
  return ask(now, {id, AskKind::Digest});
}
Actions CoordinatorState::timeline(Time now, RequestId id) {
  return ask(now, {id, AskKind::Timeline});
}
Actions CoordinatorState::gather(Time now, RequestId id) {
  return ask(now, {id, AskKind::Gather});
}

Actions CoordinatorState::ask(Time now, Ask ask) {
  if (failed_) {
    refuse(ask, *failed_);
  } else {
    asks_.push_back(ask);
    advance(now);
  }
  return take();
}

Actions CoordinatorState::stop(Time now) {
  if (run_)
    run_->remaining = 0;
  advance(now);
  return take();
}

Actions CoordinatorState::shut_down(Error reason) {
  if (!failed_)
    end(std::move(reason));
  return take();
}

void CoordinatorState::list_waiting_changes() {
  metrics_.waiting.clear();
  if (change_ && !change_->first)
    metrics_.waiting.push_back({change_->request.strategy.name, change_->request.at});
  for (const ChangeRequest& request : requests_)
    metrics_.waiting.push_back({request.strategy.name, request.at});
}

Actions CoordinatorState::take() {
  list_waiting_changes();
  return std::exchange(actions_, {});
}

// Reports.

Actions CoordinatorState::devices_ready(Time now, const std::vector<std::string>& processes) {
  for (size_t d = 0; d < processes.size() && d < metrics_.devices.size(); ++d)
    metrics_.devices[d].process = processes[d];
  devices_ready_ = true;
  advance(now);
  return take();
}

Actions CoordinatorState::compiled(Time now, const CompileReport& report) {
  if (!change_ || change_->epoch != report.epoch || change_->phase != Phase::Compiling)
    return {};
  if (!report.ok) {
    fail_change(now, report.error);
    return take();
  }
  change_->summary = report.summary;
  change_->change.compile_seconds = report.summary.compile_seconds;
  set_phase(now, Phase::Compiled);
  advance(now);
  return take();
}

Actions CoordinatorState::prepared(Time now, const PrepareReport& report) {
  if (!change_ || change_->epoch != report.epoch || change_->phase != Phase::Preparing)
    return {};
  if (!report.ok) {
    fail_change(now, report.error);
    return take();
  }
  change_->waiting.erase(report.device);
  if (change_->waiting.empty()) {
    change_->change.prepare_seconds = seconds(change_->since, now);
    set_phase(now, Phase::Prepared);
    advance(now);
  }
  return take();
}

Actions CoordinatorState::report(Time now, const OpReport& report) {
  // Sequence numbers in the log are consecutive.
  if (failed_ || log_.empty() || report.seq < log_.front().op.seq ||
      report.seq > log_.back().op.seq || report.device >= metrics_.devices.size())
    return {};
  Entry& entry = log_[report.seq - log_.front().op.seq];
  if (!entry.waiting.erase(report.device))
    return {};
  DeviceReport& figures = metrics_.devices[report.device];
  figures.peak_bytes = std::max(figures.peak_bytes, report.peak_bytes);
  figures.offloaded_bytes = std::max(figures.offloaded_bytes, report.offloaded_bytes);
  figures.busy_seconds += report.busy_seconds;
  figures.idle_seconds += report.idle_seconds;
  figures.bytes_sent += report.bytes_sent;

  if (failing_) {
    // The first device to fail for a reason of its own explains more than those it took along.
    if (!report.ok && is_echo(failing_->error.kind) && report.error.kind != failing_->error.kind &&
        report.error.kind != ErrorKind::PeerAborted)
      failing_->error = report.error;
    if (report.ok)
      entry.reports[report.device] = report;
    complete_front(now, failing_->seq);
    abort_failing();
    if (heard_all())
      finish_failing(failing_->error);
    return take();
  }
  if (!report.ok) {
    if (entry.op.kind != OpKind::Migrate) {
      begin_failing(now, report.error, report.seq);
      return take();
    }
    if (change_->phase == Phase::Migrating) {
      set_phase(now, Phase::Undoing);
      change_->error = report.error;
      actions_.push_back(action::Abort{{entry.waiting.begin(), entry.waiting.end()},
                                       peer_failed(report.device, report.error)});
    } else if (change_->error.kind == ErrorKind::PeerAborted) {
      change_->error = report.error;
    }
  }
  entry.reports[report.device] = report;
  complete_front(now);
  advance(now);
  return take();
}

Actions CoordinatorState::lost(Time, const std::vector<DeviceIndex>& devices, Error error) {
  if (failed_)
    return {};
  std::vector<DeviceIndex> others;
  for (DeviceIndex device : all_devices())
    if (std::find(devices.begin(), devices.end(), device) == devices.end())
      others.push_back(device);
  if (devices_ready_)
    actions_.push_back(action::Abort{std::move(others), error});
  finish_failing(std::move(error));
  return take();
}

// Time.

std::optional<Time> CoordinatorState::change_deadline() const {
  if (change_ && (change_->phase == Phase::Compiling || change_->phase == Phase::Preparing))
    return change_->since + options_.deadline;
  return std::nullopt;
}

std::optional<Time> CoordinatorState::log_deadline() const {
  // Twice: a device that waits for another ends by its own deadline, and says more.
  if (!log_.empty())
    return front_since_ + 2 * options_.deadline;
  return std::nullopt;
}

std::optional<Time> CoordinatorState::next_deadline() const {
  if (failed_)
    return std::nullopt;
  if (failing_)
    return failing_->until;
  auto change = change_deadline(), log = log_deadline();
  if (change && log)
    return std::min(*change, *log);
  return change ? change : log;
}

Actions CoordinatorState::tick(Time now) {
  if (failed_)
    return {};
  if (failing_) {
    if (now >= failing_->until) {
      actions_.push_back(action::Abort{all_devices(), failing_->error});
      finish_failing(blame_silent(failing_->error));
    }
    return take();
  }
  if (auto due = change_deadline(); due && now >= *due) {
    if (change_->phase == Phase::Preparing)
      fail_change(now, timeout(change_->waiting,
                               fmt::format("preparation of {}", change_->request.strategy.name),
                               options_.deadline));
    else
      fail_change(now, {ErrorKind::Timeout,
                        fmt::format("{} was not compiled within {} ms",
                                    change_->request.strategy.name, options_.deadline.count()),
                        change_->request.strategy.name,
                        {}});
  }
  if (auto due = log_deadline(); due && now >= *due) {
    const Entry& front = log_.front();
    begin_failing(now,
                  timeout(front.waiting,
                          front.op.kind == OpKind::Run
                              ? fmt::format("iteration {}", front.op.iteration)
                              : to_string(front.op.kind),
                          2 * options_.deadline),
                  front.op.seq);
  }
  return take();
}

// The log.

void CoordinatorState::enqueue(Time now, Op op, std::vector<DeviceIndex> devices,
                               std::optional<Ask> ask, bool last) {
  op.seq = next_seq_++;
  if (log_.empty())
    front_since_ = now;
  Entry entry{op, {devices.begin(), devices.end()}, {}, {}, ask, last};
  if (op.kind == OpKind::Run || op.kind == OpKind::Evaluate)
    entry.loss_order = current_->loss_order;
  log_.push_back(std::move(entry));
  actions_.push_back(action::Enqueue{std::move(devices), std::move(op)});
}

void CoordinatorState::enqueue_evaluation(Time now, std::optional<Ask> ask) {
  for (int64_t batch = 0; batch < options_.eval_batches; ++batch)
    enqueue(now, {.kind = OpKind::Evaluate, .epoch = current_->epoch, .iteration = batch},
            members(), ask, batch + 1 == options_.eval_batches);
}

void CoordinatorState::complete_front(Time now, uint64_t end) {
  while (!log_.empty() && log_.front().op.seq < end && log_.front().waiting.empty()) {
    Entry done = std::move(log_.front());
    log_.pop_front();
    front_since_ = now;
    complete(now, std::move(done));
  }
}

void CoordinatorState::complete(Time now, Entry entry) {
  auto loss = [&] {
    std::vector<std::vector<double>> losses(entry.loss_order.size());
    for (size_t m = 0; m < losses.size(); ++m)
      for (DeviceIndex device : entry.loss_order[m])
        if (auto found = entry.reports.find(device);
            found != entry.reports.end() && m < found->second.losses.size())
          losses[m].push_back(found->second.losses[m]);
    return combine_losses(losses);
  };
  switch (entry.op.kind) {
  case OpKind::Run: {
    StepResult step;
    step.iteration = entry.op.iteration;
    step.epoch = entry.op.epoch;
    step.loss = loss();
    for (const auto& [device, report] : entry.reports)
      step.grad_norm = std::max(step.grad_norm, report.grad_norm);
    step.seconds = seconds(last_end_, now);
    step.tokens_per_second = step.seconds > 0 ? options_.tokens_per_iteration / step.seconds : 0;
    last_end_ = now;
    metrics_.iterations = step.iteration + 1;
    metrics_.loss = step.loss;
    if (!log_.empty() && log_.front().op.kind == OpKind::Evaluate && !log_.front().ask)
      held_step_ = std::move(step);
    else
      step_done(std::move(step));
    break;
  }
  case OpKind::Evaluate: {
    evaluation_.push_back(loss());
    last_end_ = now;
    if (!entry.last)
      break;
    double sum = 0;
    for (double of_batch : evaluation_)
      sum += of_batch;
    double mean = sum / static_cast<double>(evaluation_.size());
    evaluation_.clear();
    if (entry.ask) {
      actions_.push_back(action::EvaluateDone{entry.ask->id, mean});
    } else {
      held_step_->eval_loss = mean;
      step_done(*std::exchange(held_step_, std::nullopt));
    }
    break;
  }
  case OpKind::Initialize:
    commit(now);
    break;
  case OpKind::Migrate:
    if (change_->phase == Phase::Undoing) {
      enqueue(now, {.kind = OpKind::Recover, .epoch = change_->epoch}, all_devices());
      break;
    }
    for (const auto& [device, report] : entry.reports)
      change_->change.bytes_moved += report.bytes_sent;
    commit(now);
    break;
  case OpKind::Commit:
    committed(now);
    break;
  case OpKind::Recover:
    last_end_ = now;
    fail_change(now, change_->error);
    break;
  case OpKind::Hashes: {
    std::map<uint32_t, std::pair<DeviceIndex, uint64_t>> first;
    std::optional<Error> differ;
    for (const auto& [device, report] : entry.reports)
      for (const auto& [param, hash] : report.hashes) {
        auto [at, is_new] = first.try_emplace(param, device, hash);
        if (!is_new && at->second.second != hash && !differ)
          differ = internal_error(fmt::format("devices {} and {} hold different values of "
                                              "parameter {}",
                                              at->second.first, device, param));
      }
    if (!differ && first.size() != current_->owners.size())
      differ = internal_error(fmt::format("{} of {} parameters are held by a device", first.size(),
                                          current_->owners.size()));
    ir::Hasher hasher;
    for (const auto& [param, held] : first)
      hasher.add(held.second);
    actions_.push_back(action::DigestDone{entry.ask->id, differ ? Result<std::string>(*differ)
                                                                : hasher.finish().to_string()});
    last_end_ = now;
    break;
  }
  case OpKind::Timeline: {
    ir::Timeline all;
    for (auto& [device, report] : entry.reports)
      all.append(std::move(report.timeline));
    if (all.lanes.empty())
      actions_.push_back(action::TimelineDone{
          entry.ask->id, user_error("no iteration has been run under it yet", current_->strategy,
                                    "ask after an iteration")});
    else
      actions_.push_back(action::TimelineDone{entry.ask->id, std::move(all)});
    last_end_ = now;
    break;
  }
  case OpKind::Gather:
    actions_.push_back(action::GatherDone{entry.ask->id, {}});
    last_end_ = now;
    break;
  }
}

void CoordinatorState::step_done(StepResult step) {
  --run_->open;
  actions_.push_back(action::StepDone{run_->id, std::move(step)});
}

bool CoordinatorState::change_blocks_grants() const {
  auto is_due = [&](const ChangeRequest& request) {
    return request.at && *request.at <= next_iteration_;
  };
  if (!requests_.empty() && is_due(requests_.front()))
    return true;
  if (!change_)
    return false;
  switch (change_->phase) {
  case Phase::Compiling:
  case Phase::Compiled:
  case Phase::Preparing:
    return is_due(change_->request);
  case Phase::Prepared:
    return !change_->request.at || is_due(change_->request);
  case Phase::Migrating:
  case Phase::Undoing:
    return true;
  case Phase::Committing: // devices do it before what is granted now
    return false;
  }
  return false;
}

void CoordinatorState::advance(Time now) {
  if (failed_ || failing_)
    return;
  if (!change_)
    start_next_change(now);
  if (change_ && change_->phase == Phase::Compiled && devices_ready_) {
    auto devices = all_devices();
    change_->waiting = {devices.begin(), devices.end()};
    set_phase(now, Phase::Preparing);
    actions_.push_back(action::Prepare{change_->epoch});
  }
  if (change_ && change_->phase == Phase::Prepared && change_blocks_grants() && log_.empty()) {
    change_->pause_began = run_ && next_iteration_ > 0 ? last_end_ : now;
    change_->change.iteration = next_iteration_;
    set_phase(now, Phase::Migrating);
    enqueue(
        now,
        {.kind = change_->first ? OpKind::Initialize : OpKind::Migrate, .epoch = change_->epoch},
        all_devices());
  }
  if (current_ && !change_blocks_grants()) {
    for (const Ask& ask : std::exchange(asks_, {})) {
      if (ask.kind == AskKind::Evaluate)
        enqueue_evaluation(now, ask);
      else if (ask.kind == AskKind::Digest)
        enqueue(now, {.kind = OpKind::Hashes, .epoch = current_->epoch}, members(), ask);
      else if (ask.kind == AskKind::Timeline)
        enqueue(now, {.kind = OpKind::Timeline, .epoch = current_->epoch}, members(), ask);
      else
        enqueue(now, {.kind = OpKind::Gather, .epoch = next_epoch_++, .owners = current_->owners},
                all_devices(), ask);
    }
    while (run_ && run_->remaining > 0 && run_->granted < options_.window &&
           !change_blocks_grants()) {
      enqueue(now, {.kind = OpKind::Run, .epoch = current_->epoch, .iteration = next_iteration_},
              members());
      ++next_iteration_;
      --run_->remaining;
      ++run_->granted;
      ++run_->open;
      if (options_.eval_every > 0 && next_iteration_ % options_.eval_every == 0)
        enqueue_evaluation(now, std::nullopt);
    }
  }
  if (run_ && run_->remaining == 0 && run_->open == 0)
    end_run({});
}

// Changes.

void CoordinatorState::start_next_change(Time now) {
  if (change_ || requests_.empty() || failed_)
    return;
  ActiveChange change;
  change.request = std::move(requests_.front());
  requests_.pop_front();
  change.epoch = next_epoch_++;
  change.first = !current_;
  change.since = now;
  change.change.from = metrics_.strategy;
  change.change.to = change.request.strategy.name;
  change.change.epoch = change.epoch;
  actions_.push_back(action::Compile{change.epoch,
                                     current_ ? std::optional(current_->epoch) : std::nullopt,
                                     change.request.strategy});
  change_ = std::move(change);
}

void CoordinatorState::set_phase(Time now, Phase phase) {
  change_->phase = phase;
  change_->since = now;
}

void CoordinatorState::fail_change(Time now, Error error) {
  actions_.push_back(action::Discard{change_->epoch});
  if (change_->first) {
    finish_failing(std::move(error));
    return;
  }
  actions_.push_back(action::ChangeDone{change_->request.id, std::move(error)});
  change_.reset();
  advance(now);
}

void CoordinatorState::commit(Time now) {
  set_phase(now, Phase::Committing);
  current_ = change_->summary;
  enqueue(now, {.kind = OpKind::Commit, .epoch = change_->epoch}, all_devices());
}

void CoordinatorState::committed(Time now) {
  Change change = change_->change;
  change.pause_seconds = seconds(change_->pause_began, now);
  last_end_ = now;
  metrics_.epoch = change.epoch;
  metrics_.strategy = change.to;
  for (DeviceReport& device : metrics_.devices) {
    auto role = current_->roles.find(device.device);
    device.role = role == current_->roles.end() ? "" : role->second;
  }
  actions_.push_back(action::Committed{change.epoch});
  if (change_->first) {
    actions_.push_back(action::Started{});
  } else {
    metrics_.changes.push_back(change);
    actions_.push_back(action::ChangeDone{change_->request.id, std::move(change)});
  }
  change_.reset();
}

// Failures.

void CoordinatorState::begin_failing(Time now, Error error, uint64_t seq) {
  failing_ = Failing{std::move(error), now + options_.grace, seq, {}};
  abort_failing();
  if (heard_all())
    finish_failing(failing_->error);
}

void CoordinatorState::abort_failing() {
  // A device that is still in an operation before the failed one can end it: nobody who takes part
  // in it has failed.
  std::vector<DeviceIndex> devices;
  for (DeviceIndex device : all_devices())
    for (const Entry& entry : log_)
      if (entry.waiting.count(device)) {
        if (entry.op.seq >= failing_->seq && failing_->aborted.insert(device).second)
          devices.push_back(device);
        break;
      }
  if (!devices.empty())
    actions_.push_back(action::Abort{std::move(devices),
                                     {ErrorKind::PeerAborted,
                                      "another device failed: " + failing_->error.message,
                                      failing_->error.where,
                                      {}}});
}

bool CoordinatorState::heard_all() const {
  if (is_echo(failing_->error.kind))
    return false;
  for (const Entry& entry : log_)
    if (!entry.waiting.empty())
      return false;
  return true;
}

Error CoordinatorState::blame_silent(Error error) const {
  // Who is still in the first operation that has not ended; others may only be behind.
  const auto stuck = std::find_if(log_.begin(), log_.end(),
                                  [](const Entry& entry) { return !entry.waiting.empty(); });
  if (is_echo(error.kind) && stuck != log_.end())
    error.message = fmt::format("{} did not answer: {}",
                                name_holders(stuck->waiting, metrics_.devices), error.message);
  return error;
}

void CoordinatorState::finish_failing(Error error) {
  end(error);
  actions_.push_back(action::Failed{std::move(error)});
}

void CoordinatorState::end(const Error& error) {
  failing_.reset();
  failed_ = error;
  if (change_) {
    if (change_->first)
      actions_.push_back(action::Started{error});
    else
      actions_.push_back(action::ChangeDone{change_->request.id, error});
    change_.reset();
  }
  for (const ChangeRequest& request : std::exchange(requests_, {}))
    actions_.push_back(action::ChangeDone{request.id, error});
  for (const Ask& ask : std::exchange(asks_, {}))
    refuse(ask, error);
  for (const Entry& entry : std::exchange(log_, {}))
    if (entry.ask && entry.last)
      refuse(*entry.ask, error);
  if (run_)
    end_run(error);
}

void CoordinatorState::refuse(const Ask& ask, const Error& error) {
  switch (ask.kind) {
  case AskKind::Evaluate:
    actions_.push_back(action::EvaluateDone{ask.id, error});
    break;
  case AskKind::Digest:
    actions_.push_back(action::DigestDone{ask.id, error});
    break;
  case AskKind::Timeline:
    actions_.push_back(action::TimelineDone{ask.id, error});
    break;
  case AskKind::Gather:
    actions_.push_back(action::GatherDone{ask.id, error});
    break;
  }
}

void CoordinatorState::end_run(Result<void> result) {
  actions_.push_back(action::RunDone{run_->id, std::move(result)});
  run_.reset();
}

std::vector<DeviceIndex> CoordinatorState::all_devices() const {
  std::vector<DeviceIndex> devices(options_.devices);
  for (DeviceIndex d = 0; d < options_.devices; ++d)
    devices[d] = d;
  return devices;
}

std::vector<DeviceIndex> CoordinatorState::members() const {
  std::vector<DeviceIndex> devices;
  for (const auto& [device, role] : current_->roles)
    devices.push_back(device);
  return devices;
}

} // namespace piper::actors
