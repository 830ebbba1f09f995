// The gpt of examples/models as one would write it in LibTorch without this library: torch::nn
// modules, one loop, LibTorch's fused AdamW. What `piper bench train --against libtorch` compares
// with. Same weights, text and sampling, so that the losses can be laid side by side.
//
//   gpt_by_hand --layers L --d-model D --heads H --seq T --batch B --microbatches M
//               --iters N --warmup W --dtype float32|float64 --json FILE
#include "examples/models/text.h"
#include "examples/models/weights.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

namespace {

struct Config {
  int64_t layers = 8, d_model = 256, heads = 8, seq = 128, batch = 16, microbatches = 8;
  int64_t iterations = 12, warmup = 2, threads = 1;
  std::string dtype = "float32", json;
};

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t d, int64_t heads_) : heads(heads_) {
    const auto norm = torch::nn::LayerNormOptions({d});
    ln1 = register_module("ln1", torch::nn::LayerNorm(norm));
    qkv = register_module("qkv", torch::nn::Linear(d, 3 * d));
    proj = register_module("proj", torch::nn::Linear(d, d));
    ln2 = register_module("ln2", torch::nn::LayerNorm(norm));
    fc1 = register_module("fc1", torch::nn::Linear(d, 4 * d));
    fc2 = register_module("fc2", torch::nn::Linear(4 * d, d));
  }
  torch::Tensor forward(torch::Tensor x) {
    const int64_t B = x.size(0), T = x.size(1), d = x.size(2);
    auto parts = qkv(ln1(x)).view({B, T, 3, heads, d / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    auto y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
    x = x + proj(y.transpose(1, 2).reshape({B, T, d}));
    return x + fc2(torch::gelu(fc1(ln2(x))));
  }
  int64_t heads;
  torch::nn::LayerNorm ln1{nullptr}, ln2{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Module {
  explicit GptImpl(const Config& c) {
    tok = register_module("tok", torch::nn::Embedding(256, c.d_model));
    pos = register_module("pos", torch::nn::Embedding(c.seq, c.d_model));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < c.layers; ++i)
      blocks->push_back(Block(c.d_model, c.heads));
    lnf = register_module("lnf", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.d_model})));
    head = register_module("head",
                           torch::nn::Linear(torch::nn::LinearOptions(c.d_model, 256).bias(false)));
    torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      at::Tensor value = item.value();
      if (item.key().ends_with("bias"))
        value.zero_();
      else if (item.key().find("ln") != std::string::npos)
        value.fill_(1);
      else
        piper::models::fill_uniform(item.key(), value, 1, 0.02);
    }
  }
  torch::Tensor forward(torch::Tensor tokens) {
    auto x = tok(tokens) + pos->weight;
    for (const auto& block : *blocks)
      x = block->as<Block>()->forward(x);
    return head(lnf(x));
  }
  torch::nn::Embedding tok{nullptr}, pos{nullptr};
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm lnf{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Gpt);

/// AdamW over all parameters in one call, as PyTorch's `fused=True`.
struct FusedAdamW {
  explicit FusedAdamW(std::vector<torch::Tensor> parameters) : params(std::move(parameters)) {
    for (const auto& p : params) {
      moments1.push_back(torch::zeros_like(p));
      moments2.push_back(torch::zeros_like(p));
      steps.push_back(torch::zeros({}, torch::kFloat));
    }
  }
  void step() {
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> grads;
    for (const auto& p : params)
      grads.push_back(p.grad());
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(params, grads, moments1, moments2, {}, steps, 1e-3, 0.9, 0.95, 0.1, 1e-8,
                      false, false);
    for (auto& p : params)
      p.mutable_grad().reset();
  }
  std::vector<torch::Tensor> params, moments1, moments2, steps;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

int train(const Config& c) {
  auto source = piper::models::text_source(
      {.seq = c.seq, .batch = c.batch, .sample_microbatches = c.microbatches});
  if (!source.ok()) {
    std::fprintf(stderr, "%s\n", source.error().to_string().c_str());
    return 1;
  }
  at::set_num_threads(static_cast<int>(c.threads));
  Gpt model(c);
  model->to(c.dtype == "float64" ? torch::kDouble : torch::kFloat);
  FusedAdamW optimizer(model->parameters());
  const int64_t rows = c.batch / c.microbatches;
  nlohmann::json losses = nlohmann::json::array();
  std::vector<double> speeds;
  for (int64_t i = 0; i < c.iterations; ++i) {
    const auto start = std::chrono::steady_clock::now();
    double total = 0;
    for (int64_t m = 0; m < c.microbatches; ++m) {
      const auto tokens = (*source)({"tokens", i, m * rows, rows});
      const auto targets = (*source)({"targets", i, m * rows, rows});
      const auto logits = model(tokens);
      const auto loss =
          torch::nn::functional::cross_entropy(logits.view({-1, 256}), targets.view({-1}));
      (loss / static_cast<double>(c.microbatches)).backward();
      total += loss.item<double>();
    }
    optimizer.step();
    losses.push_back(total / static_cast<double>(c.microbatches));
    if (i >= c.warmup)
      speeds.push_back(
          static_cast<double>(c.batch * c.seq) /
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ofstream(c.json) << nlohmann::json{{"tokens_per_s_median", median(speeds)},
                                          {"losses", losses}};
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  CLI::App program("Trains the gpt with LibTorch alone");
  Config c;
  std::string strategy = "single", world = "1";
  bool ignored = false;
  program.add_option("--strategy", strategy)->check(CLI::IsMember({"single"}));
  program.add_option("--world", world)->check(CLI::IsMember({"1"}));
  program.add_option("--threads", c.threads);
  program.add_option("--layers", c.layers);
  program.add_option("--d-model", c.d_model);
  program.add_option("--heads", c.heads);
  program.add_option("--seq", c.seq);
  program.add_option("--batch", c.batch);
  program.add_option("--microbatches", c.microbatches);
  program.add_option("--iters", c.iterations);
  program.add_option("--warmup", c.warmup);
  program.add_option("--dtype", c.dtype)->check(CLI::IsMember({"float32", "float64"}));
  program.add_option("--json", c.json)->required();
  program.add_flag("--no-probe,--quiet", ignored); // of the peer scripts that it stands in for
  CLI11_PARSE(program, argc, argv);
  return train(c);
}
