#include "examples/models/llama.h"

#include "compiler/frontend/model_builder.h"
#include "examples/models/decoder.h"

#include <fmt/format.h>
#include <torch/torch.h>

namespace piper::models {

namespace {

struct Mlp : torch::nn::Module {
  Mlp(int64_t d_model, int64_t d_ff) {
    w_gate = register_parameter("w_gate", at::zeros({d_ff, d_model}));
    w_up = register_parameter("w_up", at::zeros({d_ff, d_model}));
    w_down = register_parameter("w_down", at::zeros({d_ff, d_model}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::matmul(at::silu(at::linear(x, w_gate)) * at::linear(x, w_up), w_down);
  }
  at::Tensor w_gate, w_up, w_down;
};

int64_t hidden_units(const LlamaConfig& c) {
  return c.d_ff > 0 ? c.d_ff : (c.d_model + 2) / 3 * 8;
}

} // namespace

Result<void> check(const LlamaConfig& c) {
  PIPER_CHECK_OK(check_sizes("llama", {{"layers", c.layers},
                                       {"d_model", c.d_model},
                                       {"heads", c.heads},
                                       {"kv_heads", c.kv_heads},
                                       {"d_ff", hidden_units(c)},
                                       {"seq", c.seq},
                                       {"batch", c.batch},
                                       {"vocab", c.vocab}}));
  return check_heads("llama", c.d_model, c.heads, c.kv_heads);
}

Result<Model> llama(const LlamaConfig& c, DataSource data) {
  PIPER_CHECK_OK(check(c));
  const int64_t head_size = c.d_model / c.heads, d_ff = hidden_units(c);

  const Rotation rotation(c.seq, head_size, c.rope_theta, c.dtype);
  ModelBuilder b("llama");
  b.dtype(c.dtype);
  Value tokens = b.input("tokens", {c.batch, c.seq}, at::kLong);
  Value targets = b.input("targets", {c.batch, c.seq}, at::kLong);
  const CallCut by_token{ir::Cut::Tokens};
  const auto norm = [c] { return std::make_shared<RmsNorm>(c.d_model, c.norm_eps); };
  const auto matrix = [c] { return std::vector{c.vocab, c.d_model}; };
  Value x = b.call(
      {.name = "embed", .prefix = "tok"},
      [matrix] { return std::make_shared<Embedding>(matrix(), 0); }, tokens);
  for (int64_t i = 0; i < c.layers; ++i) {
    auto layer = b.annotate("layer");
    const std::string prefix = fmt::format("layers.{}", i);
    Value n =
        b.call({.name = fmt::format("norm1.{}", i), .prefix = prefix + ".norm1", .cut = by_token},
               norm, x);
    Value y = b.call(
        {.name = fmt::format("attn{}", i),
         .prefix = prefix,
         .flops_per_row = attention_flops(c.seq, c.d_model, c.heads, c.kv_heads),
         .cut = {ir::Cut::Tensor, c.kv_heads}},
        [c, head_size, rotation](Piece piece) {
          return std::make_shared<Attention>(c.d_model, c.heads / piece.count,
                                             c.kv_heads / piece.count, head_size, rotation);
        },
        n);
    x = b.call({.name = fmt::format("add1.{}", i), .cut = by_token}, add, x, y);
    n = b.call({.name = fmt::format("norm2.{}", i), .prefix = prefix + ".norm2", .cut = by_token},
               norm, x);
    y = b.call(
        {.name = fmt::format("mlp{}", i), .prefix = prefix, .cut = {ir::Cut::Tensor, d_ff}},
        [c, d_ff](Piece piece) { return std::make_shared<Mlp>(c.d_model, d_ff / piece.count); }, n);
    x = b.call({.name = fmt::format("add2.{}", i), .cut = by_token}, add, x, y);
  }
  x = b.call({.name = "norm", .cut = by_token}, norm, x);
  x = b.call(
      "head", [matrix] { return std::make_shared<Head>(matrix(), 0); }, x);
  if (c.tied)
    b.tie("head.weight", "tok.weight");
  PIPER_TRY(Model model, b.loss(x, targets));
  model.initializer = initialize_decoder;
  model.data = std::move(data);
  return model;
}

} // namespace piper::models
