#include "examples/models/moe.h"

#include "compiler/frontend/model_builder.h"
#include "examples/models/decoder.h"

#include <fmt/format.h>
#include <torch/torch.h>

namespace piper::models {

namespace {

struct Router : torch::nn::Module {
  Router(int64_t d_model, int64_t experts, int64_t top_k) : experts(experts), top_k(top_k) {
    router = register_parameter("router", at::zeros({experts, d_model}));
  }
  /// [x] or [x, balance]
  Tensors forward(const Tensors& in) {
    const at::Tensor& x = in[0];
    const int64_t B = x.size(0), T = x.size(1), d = x.size(2);
    const at::Tensor probabilities = at::softmax(at::linear(x, router), -1); // [B, T, experts]
    const auto [best, chosen] = at::topk(probabilities, top_k);              // [B, T, k]
    const at::Tensor flat = chosen.reshape({-1});
    const at::Tensor order = at::argsort(flat, /*stable=*/true, 0, /*descending=*/false);
    const at::Tensor places =
        at::empty_like(order).scatter_(0, order, at::arange(order.size(0), order.options()));
    const at::Tensor rows =
        x.reshape({B * T, d}).index_select(0, at::div(order, top_k, "floor")); // [B T k, d]
    const at::Tensor counts = at::bincount(flat, {}, experts).view({1, experts});

    const at::Tensor copies =
        at::zeros({B, experts}, x.options())
            .scatter_add_(1, chosen.reshape({B, T * top_k}), at::ones({B, T * top_k}, x.options()));
    at::Tensor balance = (copies * probabilities.mean(1)).sum(-1) *
                         (static_cast<double>(experts) / static_cast<double>(T * top_k)); // [B]
    if (in.size() > 1)
      balance = in[1] + balance;
    return {rows, counts, places, best / best.sum(-1, /*keepdim=*/true), balance};
  }
  int64_t experts, top_k;
  at::Tensor router;
};

/// Some of the experts, on the rows that go to them, sorted by expert. Counts [sources, experts].
struct Experts : torch::nn::Module {
  Experts(int64_t experts, int64_t d_ff, int64_t d_model) {
    w_gate = register_parameter("w_gate", at::zeros({experts, d_ff, d_model}));
    w_up = register_parameter("w_up", at::zeros({experts, d_ff, d_model}));
    w_down = register_parameter("w_down", at::zeros({experts, d_ff, d_model}));
  }
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& counts) {
    const at::Tensor sum = counts.sum(0);
    const std::vector<int64_t> sizes(sum.const_data_ptr<int64_t>(),
                                     sum.const_data_ptr<int64_t>() + sum.numel());
    const Tensors parts = rows.split_with_sizes(sizes);
    const Tensors gate = w_gate.unbind(0), up = w_up.unbind(0), down = w_down.unbind(0);
    Tensors made;
    for (size_t e = 0; e < parts.size(); ++e) // one without rows gives none, and gradients of zero
      made.push_back(
          at::mm(at::silu(at::linear(parts[e], gate[e])) * at::linear(parts[e], up[e]), down[e]));
    return at::cat(made);
  }
  at::Tensor w_gate, w_up, w_down;
};

at::Tensor combine(const at::Tensor& x, const at::Tensor& rows, const at::Tensor& places,
                   const at::Tensor& weights) {
  std::vector<int64_t> shape = weights.sizes().vec();
  shape.push_back(rows.size(1));
  const at::Tensor copies = rows.index_select(0, places).view(shape); // [B, T, k, d]
  return x + (copies * weights.unsqueeze(-1)).sum(2);
}

} // namespace

Result<void> check(const MoeConfig& c) {
  PIPER_CHECK_OK(check_sizes("moe", {{"layers", c.layers},
                                     {"d_model", c.d_model},
                                     {"heads", c.heads},
                                     {"kv_heads", c.kv_heads},
                                     {"experts", c.experts},
                                     {"top_k", c.top_k},
                                     {"d_ff", c.d_ff},
                                     {"seq", c.seq},
                                     {"batch", c.batch},
                                     {"vocab", c.vocab}}));
  PIPER_CHECK_OK(check_heads("moe", c.d_model, c.heads, c.kv_heads));
  if (c.top_k > c.experts)
    return user_error(fmt::format("top_k is {} of {} experts", c.top_k, c.experts), "moe",
                      "a token goes to at most all experts");
  return {};
}

Result<Model> moe(const MoeConfig& c, DataSource data) {
  PIPER_CHECK_OK(check(c));
  const int64_t head_size = c.d_model / c.heads;
  const double expert_flops = 6.0 * c.seq * c.top_k * c.d_model * c.d_ff;

  const Rotation rotation(c.seq, head_size, c.rope_theta, c.dtype);
  ModelBuilder b("moe");
  b.dtype(c.dtype);
  Value tokens = b.input("tokens", {c.batch, c.seq}, at::kLong);
  Value targets = b.input("targets", {c.batch, c.seq}, at::kLong);
  const CallCut by_token{ir::Cut::Tokens};
  const auto norm = [c] { return std::make_shared<RmsNorm>(c.d_model, c.norm_eps); };
  const auto matrix = [c] { return std::vector{c.vocab, c.d_model}; };
  Value x = b.call(
      {.name = "embed", .prefix = "tok"},
      [matrix] { return std::make_shared<Embedding>(matrix(), 0); }, tokens);
  Value balance;
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
                                             c.kv_heads / piece.count, head_size, rotation,
                                             c.norm_eps);
        },
        n);
    x = b.call({.name = fmt::format("add{}", i), .cut = by_token}, add, x, y);
    n = b.call({.name = fmt::format("norm2.{}", i), .prefix = prefix + ".norm2", .cut = by_token},
               norm, x);
    std::vector<Value> routed_by = {n};
    if (i > 0)
      routed_by.push_back(balance);
    const Values routed = b.call(
        {.name = fmt::format("route{}", i), .prefix = prefix},
        [c] { return std::make_shared<Router>(c.d_model, c.experts, c.top_k); }, routed_by);
    balance = routed[4];
    y = b.call(
        {.name = fmt::format("experts{}", i),
         .prefix = prefix,
         .flops_per_row = expert_flops,
         .cut = {ir::Cut::Experts, c.experts, 1}},
        [c](Piece piece) {
          return std::make_shared<Experts>(c.experts / piece.count, c.d_ff, c.d_model);
        },
        routed[0], routed[1]);
    x = b.call(fmt::format("combine{}", i), combine, x, y, routed[2], routed[3]);
  }
  x = b.call({.name = "norm", .cut = by_token}, norm, x);
  x = b.call(
      "head", [matrix] { return std::make_shared<Head>(matrix(), 0); }, x);
  const double balance_weight = c.balance_weight / static_cast<double>(c.layers);
  Value loss = b.call(
      "loss",
      [balance_weight](const at::Tensor& logits, const at::Tensor& targets,
                       const at::Tensor& balance) {
        return at::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets.reshape(-1)) +
               balance_weight * balance.mean();
      },
      x, targets, balance);
  PIPER_TRY(Model model, b.loss(loss));
  model.initializer = initialize_decoder;
  model.data = std::move(data);
  return model;
}

} // namespace piper::models
