#include "actors/executor/cpu_stream.h"

#include "transport/prompt.h"

#include <ATen/Parallel.h>

#include <bit>
#include <cassert>
#include <pthread.h>

namespace piper::executor {

CpuStream::CpuStream(std::string name, CpuStreamOptions options)
    : name_(std::move(name)), options_(options), ring_(64), thread_([this] { work(); }) {
  pthread_setname_np(thread_.native_handle(), name_.substr(0, 15).c_str());
}

CpuStream::~CpuStream() {
  push({}); // the end
  launch();
  thread_.join();
}

void CpuStream::reserve(size_t operations) {
  assert(finished_.reached(tail_));
  if (operations + 1 > ring_.size())             // the destructor's too
    ring_.resize(std::bit_ceil(operations + 1)); // empty: it doesn't matter where positions fall
}

void CpuStream::push(const Operation& operation) {
  assert(tail_ - finished_.value() < ring_.size());
  ring_[tail_++ & (ring_.size() - 1)] = operation;
}

void CpuStream::enqueue(Task& task) {
  push({&task, nullptr, 0});
}

void CpuStream::record(Event& event) {
  auto& e = static_cast<CpuEvent&>(event);
  push({nullptr, &e, e.next()});
}

void CpuStream::wait(Event& event, Task& task) {
  auto& e = static_cast<CpuEvent&>(event);
  push({&task, &e, e.issued()});
}

void CpuStream::launch() {
  launched_.set(tail_);
}

Result<void> CpuStream::synchronize(Clock::duration limit) {
  if (finished_.reached(tail_) || finished_.wait(tail_, limit, options_.spin))
    return {};
  auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  return Error{ErrorKind::Timeout, "the stream is still busy after " + std::to_string(ms) + " ms",
               "stream " + name_, ""};
}

void CpuStream::work() {
  at::set_num_threads(options_.threads); // of this thread alone
  if (!options_.compute)
    transport::wake_promptly();
  for (uint32_t done = 0;;) {
    launched_.wait(done + 1, kForever, options_.spin);
    uint32_t launched = launched_.value();
    times_ = {Clock::now(), {}, {}};
    for (; done != launched; ++done) {
      const Operation& operation = ring_[done & (ring_.size() - 1)];
      if (!operation.task && !operation.event)
        return;
      perform(operation);
    }
    times_.end = Clock::now();
    finished_.set(done);
  }
}

void CpuStream::perform(const Operation& operation) {
  if (!operation.event) {
    operation.task->run();
  } else if (!operation.task) {
    operation.event->set(operation.generation);
  } else if (!operation.event->reached(operation.generation)) {
    auto start = Clock::now();
    if (!operation.event->wait(operation.generation, options_.deadline, options_.spin))
      operation.task->overdue(*operation.event);
    times_.waited += Clock::now() - start;
  }
}

std::unique_ptr<Stream> CpuBackend::make_stream(std::string name, bool compute) {
  CpuStreamOptions options = options_;
  options.threads = compute ? options_.threads : 1;
  options.compute = compute;
  return std::make_unique<CpuStream>(std::move(name), options);
}
std::unique_ptr<Event> CpuBackend::make_event() {
  return std::make_unique<CpuEvent>();
}

} // namespace piper::executor
