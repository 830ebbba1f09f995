// What autograd saves while a chunk goes forward, collected so that it can leave the device until
// the backward. Autograd is given hooks in place of the tensors (as Python's saved_tensors_hooks
// does), which hand out whatever is back by then.
//
// LibTorch asks its engine for such hooks. The first scope in a process puts an engine of ours in
// place of LibTorch's own, which differs in nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <unordered_set>
#include <vector>

namespace piper {

/// Storages that stay, such as parameters.
using FixedStorages = std::unordered_set<const c10::StorageImpl*>;

class SavedTensors {
public:
  explicit SavedTensors(std::shared_ptr<const FixedStorages> fixed);
  ~SavedTensors();

  /// Collects what this thread's autograd saves while it lives. Null: nothing.
  class Scope {
  public:
    explicit Scope(SavedTensors* saved);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    SavedTensors* previous_;
  };

  /// Copies every storage once to what `make(bytes)` gives, and lets go of it.
  void move_out(const std::function<at::Tensor(int64_t bytes)>& make);
  /// Copies them back to new storages. Autograd frees them one by one as its backward goes on.
  void move_in();
  /// Goes on with what the other one collected and autograd still holds.
  void take(SavedTensors& other);
  void clear();

private:
  struct Entry;
  struct Hooks;
  class Engine;

  const std::shared_ptr<const FixedStorages> fixed_;
  std::vector<std::weak_ptr<Entry>> entries_; ///< held by autograd
  std::vector<at::Tensor> away_;              ///< bytes, one of each storage
};

} // namespace piper
