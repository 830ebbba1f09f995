// Dispatching an instruction allocates nothing. This file counts the program's allocations.
#include "actors/executor/bench.h"

#include <atomic>
#include <cstdlib>
#include <new>

#include <catch2/catch.hpp>

namespace {
std::atomic<uint64_t> allocations{0};
}

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes))
    return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes ? bytes : 1); // or it would come from where `free` does not give back to
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

TEST_CASE("an instruction is dispatched without an allocation") {
  const uint64_t before = allocations.load();
  operator delete(operator new(1));          // a new expression could be optimised away
  REQUIRE(allocations.load() == before + 1); // it counts
  auto figures =
      piper::executor::measure_dispatch(5'000, [] { return allocations.load(); }).value_or_throw();
  // A run makes a result; its instructions make nothing.
  REQUIRE(figures.allocations < 10.0 / 5'000);
  REQUIRE(figures.one_stream_ns > 0);
  REQUIRE(figures.one_stream_ns < 1'000);
  REQUIRE(figures.two_streams_ns > figures.one_stream_ns);
}
