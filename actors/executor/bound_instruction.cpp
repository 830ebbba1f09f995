#include "actors/executor/bound_instruction.h"

#include "actors/executor/errors.h"

#include <fmt/format.h>

namespace piper::executor {

void RunState::begin(int64_t number, size_t loss_count) {
  iteration = number;
  losses.assign(loss_count, 0);
  grad_norm = 0;
  grad_factor = 1;
  updated_early = false;
  std::lock_guard lock(mutex_);
  error_.reset();
  phase_.store(Phase::Running, std::memory_order_release);
}

void RunState::fail(Error error) {
  {
    std::lock_guard lock(mutex_);
    if (error_)
      return;
    error_ = error;
    auto running = Phase::Running;
    phase_.compare_exchange_strong(running, Phase::Failed);
  }
  endpoint.abort(std::move(error));
}

void RunState::cancel(Error reason) {
  {
    std::lock_guard lock(mutex_);
    auto running = Phase::Running;
    if (phase_.compare_exchange_strong(running, Phase::Failed))
      error_ = reason;
  }
  endpoint.abort(std::move(reason));
}

bool RunState::commit() {
  auto running = Phase::Running;
  return phase_.compare_exchange_strong(running, Phase::Committed);
}

std::optional<Error> RunState::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

void BoundInstruction::run() noexcept {
  if (state->failed())
    return;
  current->store(this, std::memory_order_relaxed);
  started = Clock::now();
  HolderScope scope(holder);
  try {
    if (auto done = execute(); !done.ok()) {
      Error error = std::move(done).error();
      error.where = error.where.empty() ? where : fmt::format("{}: {}", where, error.where);
      state->fail(std::move(error));
    }
  } catch (...) {
    state->fail(error_in_flight(where));
  }
  for (at::Tensor* tensor : free_tensors)
    tensor->reset();
  for (ChunkContext* context : free_contexts)
    context->clear();
  ended = Clock::now();
}

void BoundInstruction::overdue(const Event& event) noexcept {
  std::string what = "another stream";
  for (const auto& [other, name] : waits)
    if (other == &event)
      what = name;
  state->fail({ErrorKind::Timeout,
               fmt::format("waited {} ms for {}", state->deadline.count(), what), where,
               "a longer deadline, if this device is only slow"});
}

} // namespace piper::executor
