// The models that ship, from a JSON object of their sizes.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <string>

namespace piper::models {

/// Keys (all optional, defaults as in the structs): layers, d_model, heads, seq, batch, vocab,
/// tied, dtype ("float32", "float64") of GptConfig; data (path), seed, sample_microbatches, holdout
/// of TextConfig. User errors: malformed JSON with line and column, an unknown key with the known
/// ones, a value of a wrong type, and those of `gpt` and `text_source`.
Result<Model> make_gpt(const std::string& config_json);

/// Keys: those of `make_gpt`, and kv_heads, d_ff, rope_theta, norm_eps, as in LlamaConfig.
Result<Model> make_llama(const std::string& config_json);

/// Keys: those of `make_llama` but `tied`, and experts, top_k, balance_weight, as in MoeConfig.
Result<Model> make_moe(const std::string& config_json);

/// Keys: layers, d_in, d_hidden, d_out, batch, skip, dtype, seed.
Result<Model> make_mlp(const std::string& config_json);

/// A module saved by Python, as a description of its calls: see docs/models.md. Keys: file, inputs,
/// calls, loss, batch, dtype, and those of text; data may also be a .pt file of rows, or "random".
Result<Model> make_torchscript(const std::string& config_json);

} // namespace piper::models
