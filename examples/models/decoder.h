// What decoders of the Llama family share: embedding, RMS norm (arXiv 1910.07467), causal attention
// with rotary positions (2104.09864) and grouped queries (2305.13245).
#pragma once

#include "examples/models/weights.h"

#include <c10/core/ScalarType.h>

namespace piper::models {

struct Embedding : Weights {
  using Weights::Weights;
  at::Tensor forward(const at::Tensor& tokens);
};

struct Head : Weights {
  using Weights::Weights;
  at::Tensor forward(const at::Tensor& x);
};

/// x / sqrt(mean(x²) + eps) * weight
struct RmsNorm : Weights {
  RmsNorm(int64_t size, double eps) : Weights({size}, 0), eps(eps) {}
  at::Tensor forward(const at::Tensor& x);
  double eps;
};

/// cos and sin of every position's angles, [seq, 1, head_size] each: position t rotates the element
/// pairs (j, j + head_size/2) of a head, as complex numbers, by the angle t theta^(-2j/head_size).
struct Rotation {
  Rotation(int64_t seq, int64_t head_size, double theta, c10::ScalarType dtype);
  at::Tensor cos, sin;
};

/// A piece of the attention's heads. Parameters: wq [heads h, d], wk wv [kv_heads h, d],
/// wo [heads h, d], and where norm_eps is above 0 q_norm and k_norm [h]: heads are rows, so that a
/// share of them is one contiguous piece of each matrix.
struct Attention : torch::nn::Module {
  /// `heads` and `kv_heads` of this piece. Queries and keys are normalised by head before they are
  /// rotated if norm_eps is above 0.
  Attention(int64_t d_model, int64_t heads, int64_t kv_heads, int64_t head_size, Rotation rotation,
            double norm_eps = 0);
  at::Tensor forward(const at::Tensor& x); ///< [B, T, d], without the residual
  int64_t heads, kv_heads, head_size;
  double norm_eps;
  at::Tensor wq, wk, wv, wo, q_norm, k_norm, cos, sin;
};

at::Tensor add(const at::Tensor& x, const at::Tensor& y); ///< of the residual

/// A User error of `model` for heads that don't fit: d_model is an even multiple of them, and they
/// are a multiple of kv_heads.
Result<void> check_heads(const std::string& model, int64_t d_model, int64_t heads,
                         int64_t kv_heads);
/// Multiplications and additions of a row: of the projections, and of the half of the attention
/// matrix that the causal mask leaves.
double attention_flops(int64_t seq, int64_t d_model, int64_t heads, int64_t kv_heads);
/// Norms 1, matrices uniform with deviation 0.02: an Initializer.
bool initialize_decoder(const std::string& name, at::Tensor& tensor, uint64_t seed);

} // namespace piper::models
