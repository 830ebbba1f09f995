#include "examples/models/decoder.h"

#include <fmt/format.h>
#include <torch/torch.h>

namespace piper::models {

at::Tensor Embedding::forward(const at::Tensor& tokens) {
  return at::embedding(weight, tokens);
}

at::Tensor Head::forward(const at::Tensor& x) {
  return at::linear(x, weight);
}

at::Tensor RmsNorm::forward(const at::Tensor& x) {
  // Reads x through one node: what it adds to the gradient of x is then summed apart from what
  // other calls add, whether they are fused with it or not.
  return at::rms_norm(at::alias(x), weight.sizes(), weight, eps);
}

Rotation::Rotation(int64_t seq, int64_t head_size, double theta, c10::ScalarType dtype) {
  const at::Tensor frequency =
      at::pow(theta, at::arange(0, head_size, 2, at::kDouble) / -head_size);
  const at::Tensor angle = at::outer(at::arange(seq, at::kDouble), frequency); // [T, h/2]
  const at::Tensor s = at::sin(angle);
  // (a, b) becomes (a cos - b sin, b cos + a sin): x * cos + roll(x, h/2) * sin, if sin has the
  // sign.
  cos = at::cos(angle).repeat({1, 2}).unsqueeze(1).to(dtype);
  sin = at::cat({-s, s}, 1).unsqueeze(1).to(dtype);
}

Attention::Attention(int64_t d_model, int64_t heads, int64_t kv_heads, int64_t head_size,
                     Rotation rotation, double norm_eps)
    : heads(heads), kv_heads(kv_heads), head_size(head_size), norm_eps(norm_eps) {
  wq = register_parameter("wq", at::zeros({heads * head_size, d_model}));
  wk = register_parameter("wk", at::zeros({kv_heads * head_size, d_model}));
  wv = register_parameter("wv", at::zeros({kv_heads * head_size, d_model}));
  wo = register_parameter("wo", at::zeros({heads * head_size, d_model}));
  if (norm_eps > 0) {
    q_norm = register_parameter("q_norm", at::zeros({head_size}));
    k_norm = register_parameter("k_norm", at::zeros({head_size}));
  }
  cos = register_buffer("cos", std::move(rotation.cos));
  sin = register_buffer("sin", std::move(rotation.sin));
}

at::Tensor Attention::forward(const at::Tensor& x) {
  const int64_t B = x.size(0), T = x.size(1);
  const auto project = [&](const at::Tensor& weight, int64_t count, const at::Tensor& norm) {
    const at::Tensor part = at::linear(x, weight).view({B, T, count, head_size});
    return norm.defined() ? at::rms_norm(part, {head_size}, norm, norm_eps) : part;
  };
  const auto rotate = [&](const at::Tensor& part) {
    return at::addcmul(part * cos, part.roll(head_size / 2, -1), sin);
  };
  // Each key and value head stands beside each of its queries.
  const auto share = [&](const at::Tensor& part) {
    return kv_heads == heads
               ? part
               : part.unsqueeze(3).expand({-1, -1, -1, heads / kv_heads, -1}).flatten(2, 3);
  };
  const at::Tensor q = rotate(project(wq, heads, q_norm)).transpose(1, 2); // [B, heads, T, h]
  const at::Tensor k = share(rotate(project(wk, kv_heads, k_norm))).transpose(1, 2);
  const at::Tensor v = share(project(wv, kv_heads, {})).transpose(1, 2);
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
  return at::matmul(y.transpose(1, 2).reshape({B, T, heads * head_size}), wo);
}

at::Tensor add(const at::Tensor& x, const at::Tensor& y) {
  return x + y;
}

Result<void> check_heads(const std::string& model, int64_t d_model, int64_t heads,
                         int64_t kv_heads) {
  if (d_model % (2 * heads) != 0)
    return user_error(fmt::format("d_model {} does not split to {} heads", d_model, heads), model,
                      "d_model must be an even multiple of heads: elements rotate in pairs");
  if (heads % kv_heads != 0)
    return user_error(fmt::format("{} heads do not share {} kv_heads", heads, kv_heads), model,
                      "heads must be a multiple of kv_heads");
  return {};
}

double attention_flops(int64_t seq, int64_t d_model, int64_t heads, int64_t kv_heads) {
  const int64_t head_size = d_model / heads;
  return 4.0 * seq * d_model * head_size * (heads + kv_heads) + 2.0 * seq * seq * d_model;
}

bool initialize_decoder(const std::string& name, at::Tensor& tensor, uint64_t seed) {
  if (tensor.dim() == 1)
    tensor.fill_(1);
  else
    fill_uniform(name, tensor, seed, 0.02);
  return true;
}

} // namespace piper::models
