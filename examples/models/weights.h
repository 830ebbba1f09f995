// What models share: the affine part of a layer, the parameters' initial values, checks of sizes.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <torch/nn/module.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace piper::models {

/// The parameters "weight" and, if wanted, "bias", zero until an initializer fills them: the
/// constructors of torch::nn draw random numbers that would only be overwritten.
struct Weights : torch::nn::Module {
  Weights(std::vector<int64_t> shape, int64_t bias_size)
      : Weights(at::zeros(shape), bias_size > 0 ? at::zeros({bias_size}) : at::Tensor()) {}
  explicit Weights(at::Tensor weights, at::Tensor biases = {}) {
    weight = register_parameter("weight", std::move(weights));
    if (biases.defined())
      bias = register_parameter("bias", std::move(biases));
  }
  at::Tensor weight, bias;
};

/// A User error of `model` for the first size that is below 1.
Result<void> check_sizes(const std::string& model,
                         std::initializer_list<std::pair<const char*, int64_t>> sizes);

/// Element k of `tensor`, in row-major order, becomes (u - 0.5) * 2 sqrt(3) * deviation, where u is
/// number k of the stream mix(seed) ^ fnv1a64(name): uniform, with that standard deviation.
/// Computed in double, then cast.
void fill_uniform(const std::string& name, at::Tensor& tensor, uint64_t seed, double deviation);

} // namespace piper::models
