#include "compiler/frontend/memory.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace piper {
namespace {

thread_local Holder* current_holder = nullptr;

/// In front of every block. One cache line, so that the block keeps the alignment LibTorch expects.
struct alignas(64) Header {
  int64_t bytes;
  Holder* holder;
};
static_assert(sizeof(Header) == 64 && sizeof(Header) % c10::gAlignment == 0);

Header* header_of(void* block) {
  return static_cast<Header*>(block) - 1;
}

void free_block(void* block) {
  if (!block)
    return;
  Header* header = header_of(block);
  if (header->holder)
    header->holder->credit(header->bytes);
  std::free(header);
}

class CountingAllocator final : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0)
      return {nullptr, nullptr, &free_block, device};
    Holder* holder = current_holder;
    auto count = static_cast<int64_t>(bytes);
    if (holder)
      holder->charge(count);
    void* memory = nullptr;
    if (posix_memalign(&memory, alignof(Header), bytes + sizeof(Header)) != 0) {
      if (holder)
        holder->credit(count);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "the machine has no ", format_bytes(count),
                       " left");
    }
    auto* header = new (memory) Header{count, holder};
    return {header + 1, header + 1, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

void install_allocator() {
  // Never destroyed: tensors with static lifetime may be freed after it.
  static CountingAllocator* allocator = [] {
    auto* made = new CountingAllocator;
    c10::SetCPUAllocator(made, /*priority=*/255);
    return made;
  }();
  (void)allocator;
}

} // namespace

void Holder::charge(int64_t bytes) {
  int64_t live = account_.live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (account_.cap_ > 0 && live > account_.cap_) {
    account_.live_.fetch_sub(bytes, std::memory_order_relaxed);
    // The holders as they are now: by the time somebody catches this, some have let go.
    std::string holders = account_.largest(3);
    TORCH_CHECK_WITH(OutOfMemoryError, false, format_bytes(bytes), " more than the ",
                     format_bytes(live - bytes), " in use would pass the memory cap of ",
                     format_bytes(account_.cap_),
                     holders.empty() ? "" : "; the largest holders: ", holders);
  }
  live_.fetch_add(bytes, std::memory_order_relaxed);
  account_.references_.fetch_add(1, std::memory_order_relaxed);
  int64_t peak = account_.peak_.load(std::memory_order_relaxed);
  while (live > peak && !account_.peak_.compare_exchange_weak(peak, live)) {
  }
  if (account_.trace_)
    account_.trace_->push_back(live);
}

void Holder::credit(int64_t bytes) noexcept {
  live_.fetch_sub(bytes, std::memory_order_relaxed);
  const int64_t live = account_.live_.fetch_sub(bytes, std::memory_order_relaxed) - bytes;
  if (account_.trace_)
    account_.trace_->push_back(live);
  account_.release(); // may take this holder with it
}

MemoryAccount::Ptr MemoryAccount::make(int64_t cap) {
  install_allocator();
  return Ptr(new MemoryAccount(cap));
}

Holder& MemoryAccount::holder(const std::string& name) {
  std::lock_guard lock(mutex_);
  auto [it, added] = by_name_.try_emplace(name, nullptr);
  if (added)
    it->second = &holders_.emplace_back(*this, name);
  return *it->second;
}

std::vector<MemoryHolder> MemoryAccount::holders() const {
  std::vector<MemoryHolder> result;
  {
    std::lock_guard lock(mutex_);
    for (const Holder& holder : holders_)
      if (int64_t bytes = holder.live(); bytes > 0)
        result.push_back({holder.name(), bytes});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return result;
}

std::string MemoryAccount::largest(size_t count) const {
  std::string text;
  for (const MemoryHolder& holder : holders()) {
    if (count-- == 0)
      break;
    text +=
        fmt::format("{}{} ({})", text.empty() ? "" : ", ", holder.what, format_bytes(holder.bytes));
  }
  return text;
}

HolderScope::HolderScope(Holder* holder) : previous_(current_holder) {
  current_holder = holder;
}
HolderScope::~HolderScope() {
  current_holder = previous_;
}

at::Tensor take_over(at::Tensor tensor, Holder& holder) {
  const c10::Storage& storage = tensor.storage();
  void* block = storage.data_ptr().get_context();
  bool alone = tensor.use_count() == 1 && storage.use_count() == 1;
  if (alone && block && storage.data_ptr().get_deleter() == &free_block) {
    Header* header = header_of(block);
    holder.charge(header->bytes);
    if (Holder* before = std::exchange(header->holder, &holder))
      before->credit(header->bytes);
    return tensor;
  }
  // The sender still reads it, and nobody can tell when it drops it: a second tensor over the same
  // memory, charged here until it is dropped here.
  struct Shared {
    at::Tensor tensor;
    Holder& holder;
    int64_t bytes;
    ~Shared() { holder.credit(bytes); }
  };
  auto bytes = static_cast<int64_t>(tensor.nbytes());
  auto sizes = tensor.sizes().vec();
  auto options = tensor.options();
  void* data = tensor.mutable_data_ptr();
  holder.charge(bytes);
  return at::for_blob(data, sizes)
      .context(new Shared{std::move(tensor), holder, bytes},
               [](void* shared) { delete static_cast<Shared*>(shared); })
      .options(options)
      .make_tensor();
}

std::string format_bytes(int64_t bytes) {
  if (bytes < 1000)
    return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  for (const char* unit : {"kB", "MB", "GB"})
    if ((value /= 1000) < 1000)
      return fmt::format("{:.1f} {}", value, unit);
  return fmt::format("{:.1f} TB", value / 1000);
}

} // namespace piper
