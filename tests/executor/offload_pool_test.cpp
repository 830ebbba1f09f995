#include "actors/executor/offload_pool.h"

#include <c10/util/Exception.h>

#include <catch2/catch.hpp>

using namespace piper::executor;

TEST_CASE("a pool's tensors hold what is written to them, and outlive the pool") {
  auto pool = OffloadPool::make({});
  std::vector<at::Tensor> tensors;
  for (int64_t i = 1; i <= 50; ++i)
    tensors.push_back(pool->empty(100'000 * i, at::kFloat).fill_(static_cast<double>(i)));
  const int64_t all = pool->live();
  CHECK(all >= 4 * 100'000 * 50 * 51 / 2);
  CHECK(pool->peak() == all);
  pool.reset();
  for (int64_t i = 1; i <= 50; ++i)
    CHECK(tensors[static_cast<size_t>(i - 1)].eq(static_cast<double>(i)).all().item<bool>());
}

TEST_CASE("what was freed is used again, and nothing is left when all is freed") {
  const auto pool = OffloadPool::make({});
  const at::Tensor kept = pool->empty(1000, at::kDouble);
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor tensor = pool->empty(5000, at::kDouble);
    if (i == 0)
      first = tensor.const_data_ptr();
    CHECK(tensor.const_data_ptr() == first);
    CHECK(pool->live() >= 48'000);
  }
  CHECK(pool->live() < 9000);
  CHECK(pool->peak() < 60'000);
}

TEST_CASE("a file that cannot be made or cannot grow is an error that names its place") {
  const auto nowhere = OffloadPool::make("/no/such/directory");
  CHECK_THROWS_WITH(nowhere->empty(1, at::kFloat),
                    Catch::Contains("/no/such/directory cannot be made: No such file"));
  const auto pool = OffloadPool::make({});
  CHECK_THROWS_AS(pool->empty(int64_t{1} << 58, at::kByte), c10::OutOfMemoryError);
  CHECK_THROWS_WITH(pool->empty(int64_t{1} << 58, at::kByte),
                    Catch::Contains("cannot grow by 288230376151711744 bytes"));
  CHECK(pool->empty(1, at::kFloat).fill_(3).item<float>() == 3); // goes on
}
