#include "compiler/frontend/saved_tensors.h"

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <map>
#include <mutex>
#include <utility>

namespace piper {

namespace autograd = torch::autograd;

namespace {
thread_local SavedTensors* collecting = nullptr;

/// All of a storage, as bytes.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  return at::empty({0}, tensor.options().dtype(at::kByte))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}
} // namespace

/// A tensor that autograd saved. While its storage is away only its shape is here.
struct SavedTensors::Entry {
  at::Tensor tensor;
  at::TensorOptions options;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  size_t storage = 0; ///< which of those that are away
};

struct SavedTensors::Hooks final : autograd::SavedVariableHooks {
  explicit Hooks(SavedTensors& saved) : saved(saved) {}
  void call_pack_hook(const at::Tensor& tensor) override {
    entry = std::make_shared<Entry>();
    entry->tensor = tensor.detach(); // or the graph would hold itself
    const bool has_memory = tensor.has_storage() && tensor.storage().nbytes() > 0;
    if (has_memory && !saved.fixed_->contains(tensor.storage().unsafeGetStorageImpl()))
      saved.entries_.push_back(entry);
  }
  at::Tensor call_unpack_hook() override { return entry->tensor; }

  SavedTensors& saved; ///< only while it collects
  std::shared_ptr<Entry> entry;
};

class SavedTensors::Engine final : public autograd::Engine {
public:
  std::unique_ptr<autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return collecting ? std::make_unique<Hooks>(*collecting) : nullptr;
  }
  static autograd::Engine& get() {
    static auto* engine = new Engine; // LibTorch may use it at exit
    return *engine;
  }
};

SavedTensors::SavedTensors(std::shared_ptr<const FixedStorages> fixed) : fixed_(std::move(fixed)) {
  static std::once_flag installed;
  std::call_once(installed, [] { autograd::set_default_engine_stub(&Engine::get); });
}

SavedTensors::~SavedTensors() = default;

SavedTensors::Scope::Scope(SavedTensors* saved) : previous_(collecting) {
  collecting = saved;
}

SavedTensors::Scope::~Scope() {
  collecting = previous_;
}

void SavedTensors::move_out(const std::function<at::Tensor(int64_t bytes)>& make) {
  std::map<const c10::StorageImpl*, size_t> known;
  std::vector<std::shared_ptr<Entry>> entries;
  for (const auto& each : entries_) {
    std::shared_ptr<Entry> entry = each.lock();
    if (!entry)
      continue;
    const at::Tensor& tensor = entry->tensor;
    const auto [storage, fresh] =
        known.try_emplace(tensor.storage().unsafeGetStorageImpl(), away_.size());
    if (fresh) {
      away_.push_back(make(static_cast<int64_t>(tensor.storage().nbytes())));
      away_.back().copy_(bytes_of(tensor));
    }
    entry->storage = storage->second;
    entry->options = tensor.options();
    entry->sizes = tensor.sizes().vec();
    entry->strides = tensor.strides().vec();
    entry->offset = tensor.storage_offset();
    entries.push_back(std::move(entry));
  }
  for (const auto& entry : entries) // after all copies: a storage may be that of several
    entry->tensor.reset();
}

void SavedTensors::move_in() {
  std::vector<at::Tensor> back(away_.size());
  for (const auto& each : entries_) {
    const std::shared_ptr<Entry> entry = each.lock();
    if (!entry)
      continue;
    at::Tensor& bytes = back[entry->storage];
    if (!bytes.defined()) {
      bytes = at::empty(away_[entry->storage].sizes(), entry->options.dtype(at::kByte));
      bytes.copy_(away_[entry->storage]);
    }
    entry->tensor = at::empty({0}, entry->options)
                        .set_(bytes.storage(), entry->offset, entry->sizes, entry->strides);
  }
  away_.clear();
}

void SavedTensors::take(SavedTensors& other) {
  entries_ = std::exchange(other.entries_, {});
  std::erase_if(entries_, [](const std::weak_ptr<Entry>& entry) { return entry.expired(); });
}

void SavedTensors::clear() {
  entries_.clear();
  away_.clear();
}

} // namespace piper
