// A GPT: pre-norm transformer with learned positions and causal attention, trained to predict the
// next token by mean cross entropy.
//
//   call     annotation  parameters                                                 output
//   embed                tok.weight pos.weight                                      [B, T, d]
//   attn{i}  layer = i   blocks.{i}. ln1.weight ln1.bias qkv.… proj.…               [B, T, d]
//   mlp{i}   layer = i   blocks.{i}. ln2.… fc1.… fc2.…                              [B, T, d]
//   head                 lnf.weight lnf.bias head.weight (tok.weight where tied)    [B, T, vocab]
//   loss                                                                            scalar
//
// x = tok[t] + pos; x += proj(sdpa(qkv(ln1(x)))); x += fc2(gelu(fc1(ln2(x)))), with the exact GELU;
// logits = head(lnf(x)). qkv gives q, k and v stacked in this order, each split to heads. Inputs:
// "tokens" and "targets", integers [batch, seq].
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
