#include "actors/executor/interpreter.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper::executor {

namespace {
/// Leaves no trace of an iteration that is not kept, but for updates that did not wait for that.
void undo(BoundPlan& plan, const RunState& state) {
  if (plan.plans->kind != ir::PlanKind::Train || !plan.state || state.committed())
    return;
  plan.state->clear_grads();
  plan.state->torn |= state.updated_early;
}

bool is_torn(const std::shared_ptr<EpochState>& state) {
  return state && state->torn;
}
} // namespace

Result<IterationResult> Interpreter::run(const std::shared_ptr<BoundPlan>& shared,
                                         int64_t iteration) {
  BoundPlan& plan = *shared;
  if (is_torn(plan.state) || is_torn(plan.previous))
    return user_error("an iteration failed after some of its updates had been made",
                      fmt::format("device {}", options_.index),
                      "start again from initial weights; without the fuse of updates into "
                      "reductions an iteration is kept as a whole or not at all");
  {
    std::lock_guard lock(mutex_);
    if (aborted_)
      return *aborted_;
    state_.begin(iteration, plan.loss_count);
    running_ = true;
  }
  const uint64_t sent = state_.endpoint.bytes_sent();
  issue(plan);
  auto drained = drain(plan);

  std::lock_guard lock(mutex_);
  running_ = false;
  if (!drained.ok()) {
    stuck_ = shared;
    aborted_ = drained.error();
    return std::move(drained).error();
  }
  if (auto error = state_.error()) {
    plan.drop_tensors();
    undo(plan, state_);
    if (!aborted_)
      aborted_ = error;
    return *std::move(error);
  }
  IterationResult result = collect(plan);
  result.bytes_sent = state_.endpoint.bytes_sent() - sent;
  return result;
}

void Interpreter::issue(BoundPlan& plan) {
  for (auto& s : plan.streams) {
    s->waited = {};
    s->stream->reserve(s->operations);
  }
  for (const BoundPlan::Operation& op : plan.program) {
    switch (op.kind) {
    case BoundPlan::Operation::Kind::Wait:
      op.stream->wait(*op.event, *op.task);
      break;
    case BoundPlan::Operation::Kind::Run:
      op.stream->enqueue(*op.task);
      break;
    case BoundPlan::Operation::Kind::Record:
      op.stream->record(*op.event);
      break;
    }
  }
  for (auto& s : plan.streams)
    s->stream->launch();
}

/// Waits until all streams have run dry, however long the iteration takes, unless one instruction
/// takes longer than the deadline by itself.
Result<void> Interpreter::drain(BoundPlan& plan) {
  for (auto& s : plan.streams) {
    const BoundInstruction* before = nullptr;
    while (!s->stream->synchronize(options_.deadline).ok()) {
      const BoundInstruction* now = s->current.load(std::memory_order_relaxed);
      if (now == before) {
        state_.fail({ErrorKind::Timeout,
                     fmt::format("still running after {} ms", options_.deadline.count()),
                     now ? now->where : fmt::format("device {}", options_.index),
                     "a longer deadline, if this device is only slow"});
        // Another stream's failure may be what it waits for.
        if (!s->stream->synchronize(options_.deadline).ok())
          return *state_.error();
        break;
      }
      before = now;
    }
  }
  return {};
}

IterationResult Interpreter::collect(const BoundPlan& plan) const {
  using Seconds = std::chrono::duration<double>;
  IterationResult result;
  result.iteration = state_.iteration;
  result.losses = state_.losses;
  result.grad_norm = state_.grad_norm;
  Clock::time_point start = Clock::time_point::max(), end = Clock::time_point::min();
  for (const auto& s : plan.streams) {
    StreamTimes times = s->stream->times();
    start = std::min(start, times.start);
    end = std::max(end, times.end);
  }
  if (end < start) // no stream
    return result;
  result.seconds = Seconds(end - start).count();
  for (const auto& s : plan.streams) {
    if (!s->compute)
      continue;
    StreamTimes times = s->stream->times();
    double busy = Seconds(times.end - times.start - times.waited - s->waited).count();
    result.busy_seconds += busy;
    result.idle_seconds += result.seconds - busy;
  }
  return result;
}

void Interpreter::abort(Error reason) {
  std::lock_guard lock(mutex_);
  if (!aborted_)
    aborted_ = reason;
  if (running_)
    state_.cancel(std::move(reason));
  else
    state_.endpoint.abort(std::move(reason));
}

void Interpreter::recover(ir::Epoch oldest) {
  std::lock_guard lock(mutex_);
  if (stuck_) {
    for (auto& s : stuck_->streams)
      if (!s->stream->synchronize(options_.deadline).ok())
        return; // still stuck: runs go on failing
    stuck_->drop_tensors();
    undo(*stuck_, state_);
    stuck_.reset();
  }
  aborted_.reset();
  state_.endpoint.reset(oldest);
}

} // namespace piper::executor
