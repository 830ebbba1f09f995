// A multi-layer perceptron on synthetic rows: the model of tests.
//
//   call      annotation  output
//   block{i}  layer = i   [B, d_hidden]   gelu(linear(x)), plus the output of block i-3 with `skip`
//   out                   [B, d_out]
//   loss                  scalar          mean squared error against "y"
//
// Parameters are block{i}.weight, block{i}.bias, out.weight, out.bias. A skip connection jumps over
// two blocks, so that where each is a stage a value passes two stages that don't use it.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

namespace piper::models {

struct MlpConfig {
  int64_t layers = 4;
  int64_t d_in = 16;
  int64_t d_hidden = 32;
  int64_t d_out = 8;
  int64_t batch = 16; ///< rows of the global batch
  bool skip = false;
  c10::ScalarType dtype = c10::kFloat;
  uint64_t data_seed = 1;
};

/// User errors for sizes below 1. Row r of an iteration is a function of (data_seed, iteration, r):
/// x uniform in [-1, 1), y[k] = x[k % d_in] * x[(k + 1) % d_in]. Held-out rows are other ones.
Result<Model> mlp(const MlpConfig& config);

} // namespace piper::models
