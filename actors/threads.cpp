#include "actors/threads.h"

namespace piper::actors {

void SerialThread::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (stopping_)
    return;
  queue_.push_back(std::move(work));
  if (!thread_.joinable())
    thread_ = std::thread([this] { loop(); });
  wake_.notify_one();
}

void SerialThread::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable())
    thread_.join();
}

void SerialThread::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_)
      return;
    auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

WorkThreads::~WorkThreads() {
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    threads.swap(threads_);
    wake_.notify_all();
  }
  for (auto& thread : threads)
    thread.join();
}

void WorkThreads::post(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(work));
  if (queue_.size() > idle_)
    threads_.emplace_back([this] { loop(); });
  wake_.notify_one();
}

void WorkThreads::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty())
      return;
    auto work = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    work();
    work = nullptr;
    lock.lock();
  }
}

} // namespace piper::actors
