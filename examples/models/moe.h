// A mixture of experts after Qwen3-MoE (arXiv 2505.09388): the decoder of a Llama with norms of
// queries and keys, and in place of the gated units many of them, the experts, of which a router
// picks `top_k` for each token. No token is dropped.
//
//   call         parameters                                        output
//   embed        tok.weight [vocab, d]                             [B, T, d]
//   norm1.{i}    layers.{i}.norm1.weight [d]                       [B, T, d]
//   attn{i}      layers.{i}.: wq [heads h, d], wk wv [kv_heads h, d], wo [heads h, d],
//                q_norm k_norm [h]                                 [B, T, d]
//   add{i}                                                         [B, T, d]
//   norm2.{i}    layers.{i}.norm2.weight [d]                       [B, T, d]
//   route{i}     layers.{i}.router [experts, d]                    see below
//   experts{i}   layers.{i}.: w_gate w_up w_down [experts, d_ff, d]
//                                                                  [B T k, d]
//   combine{i}                                                     [B, T, d]
//   norm, head, loss                                               as in llama
//
// All of a layer have the annotation layer = i. The router's outputs:
//   rows     [B T k, d]  each token once for each of its experts, sorted by expert
//   counts   [1, experts]  how many rows each expert gets; zero is a number too
//   places   [B T k]  where in `rows` each token's copies are
//   weights  [B, T, k]  softmax over the experts, of the chosen ones, scaled to a sum of 1
//   balance  [B]  what the layers before made, and experts x sum over e of (the share of the row's
//            copies that go to e) x (the mean probability of e in the row)
// and combine adds up the experts' rows by weight. The loss is the mean cross entropy plus
// balance_weight / layers x the mean of balance. It is taken row by row (as DeepSeek-V3 does, arXiv
// 2412.19437), not over the batch, so that it does not depend on how a strategy cuts the batch.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

namespace piper::models {

struct MoeConfig {
  int64_t layers = 4;
  int64_t d_model = 256;
  int64_t heads = 8;    ///< divides d_model, into an even number
  int64_t kv_heads = 2; ///< divides heads
  int64_t experts = 8;
  int64_t top_k = 2;
  int64_t d_ff = 256; ///< of an expert
  int64_t seq = 128;
  int64_t batch = 16; ///< rows of the global batch
  int64_t vocab = 256;
  double rope_theta = 10000;
  double norm_eps = 1e-5;
  double balance_weight = 0.001;
  c10::ScalarType dtype = c10::kFloat;
};

/// User errors for sizes that don't fit. Initial weights: norms 1, else uniform with deviation 0.02
/// (see fill_uniform). `data` as `text_source` makes it for the same sizes.
Result<Model> moe(const MoeConfig& config, DataSource data);
/// What `moe` refuses.
Result<void> check(const MoeConfig& config);

} // namespace piper::models
