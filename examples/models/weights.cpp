#include "examples/models/weights.h"

#include "examples/models/random.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace piper::models {

Result<void> check_sizes(const std::string& model,
                         std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  for (auto [name, size] : sizes)
    if (size < 1)
      return user_error(fmt::format("{} is {}", name, size), model, "sizes are at least 1");
  return {};
}

namespace {

/// From number `first` of the stream on, in the order of the indices, whatever that of the memory.
void fill(const at::Tensor& tensor, uint64_t key, double scale, int64_t first) {
  if (tensor.dim() > 1 && !tensor.is_contiguous()) {
    for (int64_t i = 0; i < tensor.size(0); ++i)
      fill(tensor.select(0, i), key, scale, first + i * (tensor.numel() / tensor.size(0)));
    return;
  }
  const at::Tensor flat = tensor.dim() == 1 ? tensor : tensor.view(-1);
  std::array<double, 1024> values; // not a second tensor as large as the first
  for (int64_t begin = 0; begin < flat.numel();) {
    const auto count = std::min<int64_t>(std::ssize(values), flat.numel() - begin);
    for (int64_t k = 0; k < count; ++k)
      values[static_cast<size_t>(k)] =
          (uniform(key, static_cast<uint64_t>(first + begin + k)) - 0.5) * scale;
    flat.narrow(0, begin, count).copy_(at::from_blob(values.data(), {count}, at::kDouble));
    begin += count;
  }
}

} // namespace

void fill_uniform(const std::string& name, at::Tensor& tensor, uint64_t seed, double deviation) {
  fill(tensor, mix(seed) ^ fnv1a64(name), 2 * std::sqrt(3.0) * deviation, 0);
}

} // namespace piper::models
