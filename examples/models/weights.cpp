#include "examples/models/weights.h"

#include "examples/models/random.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

namespace piper::models {

Result<void> check_sizes(const std::string& model,
                         std::initializer_list<std::pair<const char*, int64_t>> sizes) {
  for (auto [name, size] : sizes)
    if (size < 1)
      return user_error(fmt::format("{} is {}", name, size), model, "sizes are at least 1");
  return {};
}

void fill_uniform(const std::string& name, at::Tensor& tensor, uint64_t seed, double deviation) {
  const uint64_t key = mix(seed) ^ fnv1a64(name);
  const double scale = 2 * std::sqrt(3.0) * deviation;
  at::Tensor values = at::empty(tensor.sizes(), at::kDouble);
  double* out = values.data_ptr<double>();
  for (int64_t k = 0; k < values.numel(); ++k)
    out[k] = (uniform(key, static_cast<uint64_t>(k)) - 0.5) * scale;
  tensor.copy_(values);
}

} // namespace piper::models
