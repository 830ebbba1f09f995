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

/// Zeros of this shape, with dimension `dim` outermost in memory.
at::Tensor zeros_by(size_t dim, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  strides[dim] = 1;
  for (size_t d = shape.size(); d-- > 0;)
    if (d != dim) {
      strides[d] = strides[dim];
      strides[dim] *= shape[d];
    }
  return at::empty_strided(shape, strides).zero_(); // no view, which would keep what it is of
}

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

/// Some of the heads, without the bias of the projection.
struct Attention : torch::nn::Module {
  Attention(int64_t d_model, int64_t heads, int64_t head_size)
      : heads(heads), head_size(head_size) {
    qkv = register_module("qkv",
                          std::make_shared<Weights>(zeros_by(1, {3, heads, head_size, d_model}),
                                                    zeros_by(1, {3, heads, head_size})));
    proj = register_module("proj",
                           std::make_shared<Weights>(zeros_by(1, {d_model, heads * head_size})));
  }
  at::Tensor forward(const at::Tensor& x) {
    const int64_t B = x.size(0), T = x.size(1);
    // A head's rows of q, k and v side by side: a view, as they are stored so.
    const auto by_head = [](const at::Tensor& part) { return part.transpose(0, 1).flatten(0, 2); };
    const Tensors parts = at::linear(x, by_head(qkv->weight), by_head(qkv->bias)) // [B, T, 3 d]
                              .view({B, T, heads, 3, head_size})
                              .permute({3, 0, 2, 1, 4})
                              .unbind(0); // 3 of [B, heads, T, h]
    const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                          /*is_causal=*/true);
    return at::linear(y.transpose(1, 2).reshape({B, T, heads * head_size}), proj->weight);
  }
  int64_t heads, head_size;
  std::shared_ptr<Weights> qkv, proj;
};

/// Some of the hidden units, without the bias of the second layer.
struct Mlp : torch::nn::Module {
  Mlp(int64_t d_model, int64_t units) {
    fc1 = register_module("fc1", std::make_shared<Weights>(std::vector{units, d_model}, units));
    fc2 = register_module("fc2", std::make_shared<Weights>(zeros_by(1, {d_model, units})));
  }
  at::Tensor forward(const at::Tensor& x) {
    return at::linear(at::gelu(at::linear(x, fc1->weight, fc1->bias)), fc2->weight);
  }
  std::shared_ptr<Weights> fc1, fc2;
};

/// The residual, and the bias of what is added to it.
struct Add : torch::nn::Module {
  explicit Add(int64_t size) { bias = register_parameter("bias", at::zeros({size})); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return (x + y).add_(bias); }
  at::Tensor bias;
};

struct Head : Weights {
  using Weights::Weights;
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
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
  const CallCut by_token{ir::Cut::Tokens};
  const auto norm = [c] { return std::make_shared<LayerNorm>(c.d_model); };
  const auto add = [c] { return std::make_shared<Add>(c.d_model); };
  Value x = b.call(
      {.name = "embed", .prefix = ""}, [c] { return std::make_shared<Embedding>(c); }, tokens);
  for (int64_t i = 0; i < c.layers; ++i) {
    auto layer = b.annotate("layer");
    const std::string prefix = fmt::format("blocks.{}", i);
    Value n = b.call(
        {.name = fmt::format("norm1.{}", i), .prefix = prefix + ".ln1", .cut = by_token}, norm, x);
    Value y = b.call(
        {fmt::format("attn{}", i), prefix, attention_flops, {ir::Cut::Tensor, c.heads}},
        [c](Piece piece) {
          return std::make_shared<Attention>(c.d_model, c.heads / piece.count, c.d_model / c.heads);
        },
        n);
    x = b.call({.name = fmt::format("add1.{}", i), .prefix = prefix + ".proj", .cut = by_token},
               add, x, y);
    n = b.call({.name = fmt::format("norm2.{}", i), .prefix = prefix + ".ln2", .cut = by_token},
               norm, x);
    y = b.call(
        {.name = fmt::format("mlp{}", i),
         .prefix = prefix,
         .cut = {ir::Cut::Tensor, 4 * c.d_model}},
        [c](Piece piece) { return std::make_shared<Mlp>(c.d_model, 4 * c.d_model / piece.count); },
        n);
    x = b.call({.name = fmt::format("add2.{}", i), .prefix = prefix + ".fc2", .cut = by_token}, add,
               x, y);
  }
  x = b.call({.name = "norm", .prefix = "lnf", .cut = by_token}, norm, x);
  x = b.call(
      "head",
      [c] {
        return std::make_shared<Head>(std::vector{c.vocab, c.d_model}, 0);
      },
      x);
  if (c.tied)
    b.tie("head.weight", "tok.weight");
  PIPER_TRY(Model model, b.loss(x, targets));
  model.initializer = initialize;
  model.data = std::move(data);
  return model;
}

} // namespace piper::models
