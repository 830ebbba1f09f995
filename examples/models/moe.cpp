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

/// rows [n, k] sorted by expert, each times its expert's weights [experts, k, m], gives [n, m].
/// counts [experts]. One node for all experts: a gradient of the weights is written in place,
/// expert by expert, where the sum over nodes of single experts would be made of copies.
struct GroupedMm : torch::autograd::Function<GroupedMm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weights, const at::Tensor& counts) {
    context->save_for_backward({rows, weights, counts});
    at::Tensor made = at::empty({rows.size(0), weights.size(2)}, rows.options());
    for_each(counts, [&](int64_t expert, const auto& its) {
      at::Tensor part = its(made);
      at::mm_out(part, its(rows), weights[expert]);
    });
    return made;
  }
  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &weights = saved[1], &gradient = gradients[0];
    at::Tensor of_rows, of_weights;
    if (context->needs_input_grad(0))
      of_rows = at::empty_like(rows);
    if (context->needs_input_grad(1))
      of_weights = at::empty_like(weights);
    for_each(saved[2], [&](int64_t expert, const auto& its) {
      if (of_rows.defined()) {
        at::Tensor part = its(of_rows);
        at::mm_out(part, its(gradient), weights[expert].t());
      }
      if (of_weights.defined()) { // of an expert without rows zero
        at::Tensor part = of_weights[expert];
        at::mm_out(part, its(rows).t(), its(gradient));
      }
    });
    return {of_rows, of_weights, at::Tensor()};
  }

private:
  /// work(expert, what gives an expert's rows of a tensor)
  template <class Work> static void for_each(const at::Tensor& counts, Work work) {
    int64_t row = 0;
    for (int64_t expert = 0; expert < counts.size(0); ++expert) {
      const int64_t count = counts.const_data_ptr<int64_t>()[expert];
      work(expert, [&](const at::Tensor& all) { return all.narrow(0, row, count); });
      row += count;
    }
  }
};

/// Some of the experts, on the rows that go to them, sorted by expert. Counts [sources, experts].
struct Experts : torch::nn::Module {
  Experts(int64_t experts, int64_t d_ff, int64_t d_model) {
    w_gate = register_parameter("w_gate", at::zeros({experts, d_ff, d_model}));
    w_up = register_parameter("w_up", at::zeros({experts, d_ff, d_model}));
    w_down = register_parameter("w_down", at::zeros({experts, d_ff, d_model}));
  }
  at::Tensor forward(const at::Tensor& rows, const at::Tensor& counts) {
    const at::Tensor each = counts.sum(0);
    const at::Tensor gate = GroupedMm::apply(rows, w_gate.transpose(1, 2), each);
    const at::Tensor up = GroupedMm::apply(rows, w_up.transpose(1, 2), each);
    return GroupedMm::apply(at::silu(gate) * up, w_down, each);
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
