#include "examples/models/mlp.h"

#include "compiler/frontend/model_builder.h"
#include "examples/models/random.h"
#include "examples/models/weights.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

namespace piper::models {

namespace {

struct Linear : Weights {
  Linear(int64_t in, int64_t out) : Weights({out, in}, out) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
};

struct Block : Linear {
  using Linear::Linear;
  at::Tensor forward(const at::Tensor& x) { return at::gelu(Linear::forward(x)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) { return forward(x) + skip; }
};

bool initialize(const std::string& name, at::Tensor& tensor, uint64_t seed) {
  if (name.ends_with("bias"))
    tensor.zero_();
  else
    fill_uniform(name, tensor, seed, 1 / std::sqrt(static_cast<double>(tensor.size(1))));
  return true;
}

at::Tensor rows(const MlpConfig& c, const BatchRequest& request) {
  const bool is_target = request.input == "y";
  const int64_t width = is_target ? c.d_out : c.d_in;
  at::Tensor out = at::empty({request.rows, width}, at::kDouble);
  double* to = out.data_ptr<double>();
  const uint64_t stream = request.held_out ? ~c.data_seed : c.data_seed;
  const uint64_t iteration_key = mix(mix(stream) + static_cast<uint64_t>(request.iteration));
  for (int64_t r = request.first_row; r < request.first_row + request.rows; ++r) {
    const uint64_t key = mix(iteration_key + static_cast<uint64_t>(r));
    auto x = [&](int64_t k) { return 2 * uniform(key, static_cast<uint64_t>(k % c.d_in)) - 1; };
    for (int64_t k = 0; k < width; ++k)
      *to++ = is_target ? x(k) * x(k + 1) : x(k);
  }
  return out.to(c.dtype);
}

} // namespace

Result<Model> mlp(const MlpConfig& c) {
  PIPER_CHECK_OK(check_sizes("mlp", {{"layers", c.layers},
                                     {"d_in", c.d_in},
                                     {"d_hidden", c.d_hidden},
                                     {"d_out", c.d_out},
                                     {"batch", c.batch}}));

  ModelBuilder b("mlp");
  b.dtype(c.dtype);
  Value input = b.input("x", {c.batch, c.d_in}, c.dtype);
  Value target = b.input("y", {c.batch, c.d_out}, c.dtype);
  std::vector<Value> outputs;
  for (int64_t i = 0; i < c.layers; ++i) {
    auto layer = b.annotate("layer");
    const std::string name = fmt::format("block{}", i);
    auto block = [in = i == 0 ? c.d_in : c.d_hidden, out = c.d_hidden] {
      return std::make_shared<Block>(in, out);
    };
    Value x = outputs.empty() ? input : outputs.back();
    outputs.push_back(c.skip && i >= 3 ? b.call(name, block, x, outputs[outputs.size() - 3])
                                       : b.call(name, block, x));
  }
  Value y = b.call(
      "out", [c] { return std::make_shared<Linear>(c.d_hidden, c.d_out); }, outputs.back());
  PIPER_TRY(Model model, b.loss(b.call(
                             "loss",
                             [](const at::Tensor& prediction, const at::Tensor& wanted) {
                               return at::mse_loss(prediction, wanted);
                             },
                             y, target)));
  model.initializer = initialize;
  model.data = [c](const BatchRequest& request) { return rows(c, request); };
  return model;
}

} // namespace piper::models
