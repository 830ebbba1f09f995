// A GPT: pre-norm transformer with learned positions and causal attention, trained to predict the
// next token by mean cross entropy.
//
//   call       annotation  parameters                                               output
//   embed                  tok.weight [vocab, d], pos.weight [seq, d]               [B, T, d]
//   norm1.{i}  layer = i   blocks.{i}.ln1. weight bias [d]                          [B, T, d]
//   attn{i}    layer = i   blocks.{i}. qkv.weight [3, heads, h, d] qkv.bias [3, heads, h]
//                          proj.weight [d, d]                                       [B, T, d]
//   add1.{i}   layer = i   blocks.{i}.proj.bias [d]                                 [B, T, d]
//   norm2.{i}  layer = i   blocks.{i}.ln2. weight bias [d]                          [B, T, d]
//   mlp{i}     layer = i   blocks.{i}. fc1.weight [4 d, d] fc1.bias [4 d]
//                          fc2.weight [d, 4 d]                                      [B, T, d]
//   add2.{i}   layer = i   blocks.{i}.fc2.bias [d]                                  [B, T, d]
//   norm                   lnf. weight bias [d]                                     [B, T, d]
//   head                   head.weight [vocab, d] (tok.weight where tied)           [B, T, vocab]
//   loss                                                                            scalar
//
// with h = d / heads. x = tok[t] + pos; x += proj(sdpa(qkv(ln1(x)))); x += fc2(gelu(fc1(ln2(x)))),
// with the exact GELU; logits = head(lnf(x)). qkv gives q, k and v, each split to heads. Inputs:
// "tokens" and "targets", integers [batch, seq].
//
// attn is cut by heads and mlp by hidden units, along the outputs of qkv and fc1 and the inputs of
// proj and fc2 (arXiv 1909.08053). What they give is a sum, so the biases of proj and fc2 come with
// the residual after it.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

namespace piper::models {

struct GptConfig {
  int64_t layers = 8;
  int64_t d_model = 256;
  int64_t heads = 8; ///< divides d_model
  int64_t seq = 128;
  int64_t batch = 16; ///< rows of the global batch
  int64_t vocab = 256;
  bool tied = false; ///< the head's weight is the token embedding's
  c10::ScalarType dtype = c10::kFloat;
};

/// User errors for sizes that don't fit. Initial weights: layer norms 1, biases 0, else uniform
/// with deviation 0.02 (see fill_uniform). `data` as `text_source` makes it for the same sizes.
Result<Model> gpt(const GptConfig& config, DataSource data);
/// What `gpt` refuses.
Result<void> check(const GptConfig& config);

} // namespace piper::models
