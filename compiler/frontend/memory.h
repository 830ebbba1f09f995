// Memory accounts: every tensor on the CPU is charged to the device and to the holder
// ("parameters", "activations of F attn3 @2") for which it was allocated, exactly, wherever it is
// freed.
//
// The allocator is installed in the process when the first account is made and stays: LibTorch has
// one CPU allocator. What is allocated outside a HolderScope is charged to nobody.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace piper {

struct MemoryHolder {
  std::string what; ///< "parameters", "gradients", "optimizer", "activations of F attn3 @2", …
  int64_t bytes = 0;
};
class MemoryAccount;

/// What a device's memory is held for. Lives as long as its account.
class Holder {
public:
  Holder(MemoryAccount& account, std::string name) : account_(account), name_(std::move(name)) {}
  const std::string& name() const { return name_; }
  int64_t live() const { return live_.load(std::memory_order_relaxed); }

  /// Throws c10::OutOfMemoryError, which names the largest holders, and charges nothing, if that
  /// passes the account's cap.
  void charge(int64_t bytes);
  void credit(int64_t bytes) noexcept;

private:
  MemoryAccount& account_;
  std::string name_;
  std::atomic<int64_t> live_{0};
};

/// The memory of one device. Outlives its device while memory of it is alive.
class MemoryAccount {
public:
  struct Release {
    void operator()(MemoryAccount* account) const noexcept { account->release(); }
  };
  using Ptr = std::unique_ptr<MemoryAccount, Release>;

  /// `cap` in bytes; 0: none. Installs the allocator.
  static Ptr make(int64_t cap);

  /// The holder of that name; made if there is none. Thread-safe.
  Holder& holder(const std::string& name);

  int64_t live() const { return live_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  /// Appends to `trace` what is live after each change from here on, until it is given null. Not
  /// while others allocate.
  void record(std::vector<int64_t>* trace) { trace_ = trace; }
  /// Those that hold something, largest first.
  std::vector<MemoryHolder> holders() const;
  /// "parameters (1.2 MB), gradients (1.2 MB), …": the `count` largest.
  std::string largest(size_t count) const;

private:
  friend class Holder;
  explicit MemoryAccount(int64_t cap) : cap_(cap) {}
  ~MemoryAccount() = default;
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      delete this;
  }

  const int64_t cap_;
  std::atomic<int64_t> live_{0}, peak_{0};
  std::vector<int64_t>* trace_ = nullptr;
  std::atomic<int64_t> references_{1}; ///< the owner's, and one a block of memory
  mutable std::mutex mutex_;           ///< of the two below
  std::deque<Holder> holders_;
  std::unordered_map<std::string, Holder*> by_name_;
};

/// Charges what this thread allocates to `holder` while it lives.
class HolderScope {
public:
  explicit HolderScope(Holder* holder);
  ~HolderScope();
  HolderScope(const HolderScope&) = delete;
  HolderScope& operator=(const HolderScope&) = delete;

private:
  Holder* previous_;
};

/// A tensor that another device handed over, now charged to `holder`. If the other one has dropped
/// it the memory changes accounts; else both pay, as two devices with a copy each would. May throw
/// c10::OutOfMemoryError.
at::Tensor take_over(at::Tensor tensor, Holder& holder);

/// "512 B", "1.5 MB"
std::string format_bytes(int64_t bytes);

} // namespace piper
