// A Llama: pre-norm transformer with RMS norms (arXiv 1910.07467), rotary positions (2104.09864),
// gated units (SwiGLU, 2002.05202) and grouped queries (2305.13245), trained to predict the next
// token by mean cross entropy.
//
//   call       annotation  parameters                                              output
//   embed                  tok.weight [vocab, d]                                   [B, T, d]
//   norm1.{i}  layer = i   layers.{i}.norm1.weight [d]                             [B, T, d]
//   attn{i}    layer = i   layers.{i}.: wq [heads h, d], wk wv [kv_heads h, d],
//                          wo [heads h, d]                                         [B, T, d]
//   add1.{i}   layer = i                                                           [B, T, d]
//   norm2.{i}  layer = i   layers.{i}.norm2.weight [d]                             [B, T, d]
//   mlp{i}     layer = i   layers.{i}.: w_gate w_up w_down [d_ff, d]               [B, T, d]
//   add2.{i}   layer = i                                                           [B, T, d]
//   norm                   norm.weight [d]                                         [B, T, d]
//   head                   head.weight [vocab, d] (tok.weight where tied)          [B, T, vocab]
//   loss                                                                           scalar
//
// with h = d_model / heads. Of a layer:
//   n = norm1(x); q, k, v = n wqᵀ, n wkᵀ, n wvᵀ, each split to heads; q and k are rotated
//   x = x + attention(q, k, v) wo, causal; query head j attends to key head j / (heads / kv_heads)
//   n = norm2(x); x = x + (silu(n w_gateᵀ) * (n w_upᵀ)) w_down
// norm(x) = x / sqrt(mean(x²) + norm_eps) * weight. Position t rotates element pairs (j, j + h/2)
// of a head, as complex numbers, by the angle t rope_theta^(-2j/h).
//
// Heads and the units of d_ff are rows of every matrix that has them: a share of them is one
// contiguous piece of each. The calls between (norms, additions) work on each token alone.
//
// Inputs: "tokens" and "targets", integers [batch, seq].
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

namespace piper::models {

struct LlamaConfig {
  int64_t layers = 8;
  int64_t d_model = 256;
  int64_t heads = 8;    ///< divides d_model, into an even number
  int64_t kv_heads = 2; ///< divides heads
  int64_t d_ff = 0;     ///< 0: 8/3 d_model, rounded up to a multiple of 8
  int64_t seq = 128;
  int64_t batch = 16; ///< rows of the global batch
  int64_t vocab = 256;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  bool tied = false; ///< the head's weight is the token embedding's
  c10::ScalarType dtype = c10::kFloat;
};

/// User errors for sizes that don't fit. Initial weights: norms 1, else uniform with deviation 0.02
/// (see fill_uniform). `data` as `text_source` makes it for the same sizes.
Result<Model> llama(const LlamaConfig& config, DataSource data);
/// What `llama` refuses.
Result<void> check(const LlamaConfig& config);

} // namespace piper::models
