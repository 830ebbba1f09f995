#include "examples/models/gpt.h"

#include "compiler/frontend/model_builder.h"
#include "examples/models/weights.h"

#include <fmt/format.h>
#include <torch/torch.h>

namespace piper::models {

namespace {

/// The functional calls are one autograd node each.
struct LayerNorm : Weights {
  explicit LayerNorm(int64_t size) : Weights({size}, size) {}
  at::Tensor forward(const at::Tensor& x) {
    return at::layer_norm(x, weight.sizes(), weight, bias, 1e-5);
  }
};

struct Linear : Weights {
  Linear(int64_t in, int64_t out, bool with_bias = true)
      : Weights({out, in}, with_bias ? out : 0) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};

struct Embedding : torch::nn::Module {
  explicit Embedding(const GptConfig& c) {
    tok = register_module("tok", std::make_shared<Weights>(std::vector{c.vocab, c.d_model}, 0));
    pos = register_module("pos", std::make_shared<Weights>(std::vector{c.seq, c.d_model}, 0));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return at::embedding(tok->weight, tokens) + pos->weight; // [B, T, d] + [T, d]
  }
  std::shared_ptr<Weights> tok, pos;
};

struct Attention : torch::nn::Module {
  explicit Attention(const GptConfig& c) : heads(c.heads) {
    ln1 = register_module("ln1", std::make_shared<LayerNorm>(c.d_model));
    qkv = register_module("qkv", std::make_shared<Linear>(c.d_model, 3 * c.d_model));
    proj = register_module("proj", std::make_shared<Linear>(c.d_model, c.d_model));
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t B = x.size(0), T = x.size(1), d = x.size(2);
    auto parts = qkv->forward(ln1->forward(x)) // [B, T, 3 d]
                     .view({B, T, 3, heads, d / heads})
                     .permute({2, 0, 3, 1, 4})
                     .unbind(0); // 3 of [B, heads, T, d / heads]
    at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                    /*is_causal=*/true);
    return x + proj->forward(y.transpose(1, 2).reshape({B, T, d}));
  }
  int64_t heads;
  std::shared_ptr<LayerNorm> ln1;
  std::shared_ptr<Linear> qkv, proj;
};

struct Mlp : torch::nn::Module {
  explicit Mlp(const GptConfig& c) {
    ln2 = register_module("ln2", std::make_shared<LayerNorm>(c.d_model));
    fc1 = register_module("fc1", std::make_shared<Linear>(c.d_model, 4 * c.d_model));
    fc2 = register_module("fc2", std::make_shared<Linear>(4 * c.d_model, c.d_model));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + fc2->forward(at::gelu(fc1->forward(ln2->forward(x))));
  }
  std::shared_ptr<LayerNorm> ln2;
  std::shared_ptr<Linear> fc1, fc2;
};

struct Head : torch::nn::Module {
  explicit Head(const GptConfig& c) {
    lnf = register_module("lnf", std::make_shared<LayerNorm>(c.d_model));
    head = register_module("head", std::make_shared<Linear>(c.d_model, c.vocab, false));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(lnf->forward(x)); }
  std::shared_ptr<LayerNorm> lnf;
  std::shared_ptr<Linear> head;
};

bool initialize(const std::string& name, at::Tensor& tensor, uint64_t seed) {
  if (name.ends_with("bias"))
    tensor.zero_();
  else if (name.starts_with("lnf") || name.find(".ln") != std::string::npos)
    tensor.fill_(1);
  else
    fill_uniform(name, tensor, seed, 0.02);
  return true;
}

} // namespace

Result<void> check(const GptConfig& c) {
  PIPER_CHECK_OK(check_sizes("gpt", {{"layers", c.layers},
                                     {"d_model", c.d_model},
                                     {"heads", c.heads},
                                     {"seq", c.seq},
                                     {"batch", c.batch},
                                     {"vocab", c.vocab}}));
  if (c.d_model % c.heads != 0)
    return user_error(fmt::format("d_model {} does not split to {} heads", c.d_model, c.heads),
                      "gpt", "d_model must be a multiple of heads");
  return {};
}

Result<Model> gpt(const GptConfig& c, DataSource data) {
  PIPER_CHECK_OK(check(c));
  // Multiplications and additions of a row: of the projections, and of the half of the attention
  // matrix that the causal mask leaves.
  const double attention_flops =
      8.0 * c.seq * c.d_model * c.d_model + 2.0 * c.seq * c.seq * c.d_model;

  ModelBuilder b("gpt");
  b.dtype(c.dtype);
  Value tokens = b.input("tokens", {c.batch, c.seq}, at::kLong);
  Value targets = b.input("targets", {c.batch, c.seq}, at::kLong);
  Value x = b.call(
      {.name = "embed", .prefix = ""}, [c] { return std::make_shared<Embedding>(c); }, tokens);
  for (int64_t i = 0; i < c.layers; ++i) {
    auto layer = b.annotate("layer");
    const std::string prefix = fmt::format("blocks.{}", i);
    x = b.call(
        {fmt::format("attn{}", i), prefix, attention_flops},
        [c] { return std::make_shared<Attention>(c); }, x);
    x = b.call(
        {fmt::format("mlp{}", i), prefix}, [c] { return std::make_shared<Mlp>(c); }, x);
  }
  x = b.call(
      {.name = "head", .prefix = ""}, [c] { return std::make_shared<Head>(c); }, x);
  if (c.tied)
    b.tie("head.weight", "tok.weight");
  PIPER_TRY(Model model, b.loss(x, targets));
  model.initializer = initialize;
  model.data = std::move(data);
  return model;
}

} // namespace piper::models
