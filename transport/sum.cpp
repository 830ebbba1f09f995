#include "transport/sum.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace piper::transport {
namespace {

using ir::DType;

template <class T> T wrapping_add(T a, T b) {
  return a + b;
}
template <> int64_t wrapping_add(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

template <class T>
void sum_typed(std::span<void* const> to, std::span<void* const> from, size_t first, size_t count) {
  auto source = [&](size_t r, size_t at) { return static_cast<const T*>(from[r]) + first + at; };
  if (from.size() == 2 && to.size() == 1) {
    const T *a = source(0, 0), *b = source(1, 0);
    T* out = static_cast<T*>(to[0]) + first;
    for (size_t i = 0; i < count; ++i)
      out[i] = wrapping_add(a[i], b[i]);
    return;
  }
  // Block by block through a buffer that stays in the first-level cache, as `to` may be a source.
  constexpr size_t kBlock = 4096 / sizeof(T);
  alignas(64) T block[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t n = std::min(kBlock, count - at);
    std::memcpy(block, source(0, at), n * sizeof(T));
    for (size_t r = 1; r < from.size(); ++r) {
      const T* next = source(r, at);
      for (size_t i = 0; i < n; ++i)
        block[i] = wrapping_add(block[i], next[i]);
    }
    for (void* out : to)
      std::memcpy(static_cast<T*>(out) + first + at, block, n * sizeof(T));
  }
}

} // namespace

bool can_sum(DType dtype) {
  return dtype == DType::F32 || dtype == DType::F64 || dtype == DType::I64;
}

void sum(std::span<void* const> to, std::span<void* const> from, size_t first, size_t count,
         DType dtype) {
  if (dtype == DType::F32)
    sum_typed<float>(to, from, first, count);
  else if (dtype == DType::F64)
    sum_typed<double>(to, from, first, count);
  else
    sum_typed<int64_t>(to, from, first, count);
}

} // namespace piper::transport
