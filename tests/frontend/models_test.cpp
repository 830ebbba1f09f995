// The models that ship: weights, text and losses, beside numbers computed independently.
#include "examples/models/gpt.h"
#include "examples/models/mlp.h"
#include "examples/models/registry.h"
#include "examples/models/text.h"
#include "tests/frontend/reference_training.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::models;
using Catch::Matchers::Contains;

namespace {

constexpr const char* kLicenses = "/usr/share/common-licenses";

uint64_t splitmix(uint64_t z) {
  z = z + 0x9E3779B97F4A7C15ULL;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ z >> 27) * 0x94D049BB133111EBULL;
  return z ^ z >> 31;
}
template <class Items> uint64_t fnv(const Items& items) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (auto item : items)
    hash = (hash ^ static_cast<uint64_t>(item)) * 0x100000001B3ULL;
  return hash;
}

/// A file that lives as long as this.
class TemporaryFile {
public:
  explicit TemporaryFile(const std::string& content)
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("piper_text_{}_{}", ::getpid(), static_cast<void*>(this))) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

private:
  std::filesystem::path path_;
};

std::string alphabet(size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i)
    text += static_cast<char>('a' + i % 23);
  return text;
}

std::string output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  std::array<char, 4096> buffer;
  while (size_t n = std::fread(buffer.data(), 1, buffer.size(), pipe))
    text.append(buffer.data(), n);
  REQUIRE(::pclose(pipe) == 0);
  return text;
}

Model built(Result<Model> model) {
  if (!model)
    FAIL(model.error().to_string());
  return *std::move(model);
}
/// "layer=1"; empty without annotations.
std::string tags(const Model& model, const char* name) {
  std::string text;
  for (const ir::Tag& tag : model.spec->call(model.spec->find_call(name)).annotations)
    text += fmt::format("{}={}", tag.name, tag.index);
  return text;
}
template <class T> Error refused(Result<T> result) {
  REQUIRE_FALSE(result.ok());
  CHECK(result.error().kind == ErrorKind::User);
  return result.error();
}

} // namespace

TEST_CASE("gpt's initial weights are the numbers of the specification") {
  Model model = built(make_gpt(R"({"layers": 2, "d_model": 8, "heads": 2, "seq": 4, "batch": 2})"));
  const ir::ModelSpec& spec = *model.spec;
  std::map<std::string, at::Tensor> weights;
  for (uint32_t m = 0; m < model.modules.size(); ++m) {
    BuiltModule module = model.build(m, 7);
    for (const auto& [own_name, id] : model.modules[m].params)
      weights[spec.param(id).name] = module.module->named_parameters()[own_name].detach();
  }
  CHECK(weights.size() == 2 + 2 * 12 + 3);
  for (const char* name : {"tok.weight", "pos.weight", "blocks.0.qkv.weight",
                           "blocks.1.proj.weight", "blocks.1.fc2.weight", "head.weight"}) {
    at::Tensor flat = weights.at(name).flatten();
    for (int64_t k : {int64_t{0}, int64_t{1}, flat.numel() - 1}) {
      uint64_t bits = splitmix((splitmix(7) ^ fnv(std::string(name))) + static_cast<uint64_t>(k));
      double u = static_cast<double>(bits >> 11) / 9007199254740992.0; // 2^53
      CHECK(flat[k].item<float>() == static_cast<float>((u - 0.5) * (2 * std::sqrt(3.0) * 0.02)));
    }
  }
  for (const char* name : {"blocks.0.ln1.weight", "blocks.1.ln2.weight", "lnf.weight"})
    CHECK(weights.at(name).equal(at::ones({8})));
  for (const char* name : {"blocks.0.ln1.bias", "blocks.1.fc2.bias", "lnf.bias"})
    CHECK(weights.at(name).equal(at::zeros({8})));
}

TEST_CASE("gpt is cut along the outputs of two layers and the inputs of the next") {
  Model model = built(make_gpt(R"({"layers": 1, "d_model": 8, "heads": 2, "seq": 4, "batch": 2})"));
  const ir::ModelSpec& spec = *model.spec;
  const auto param = [&](const std::string& name) {
    const ir::ModelParam& its = spec.param(spec.find_param("blocks.0." + name));
    return fmt::format("{} {}", its.type.to_string(), its.cut);
  };
  CHECK(param("qkv.weight") == "f32[3,2,4,8] 1");
  CHECK(param("qkv.bias") == "f32[3,2,4] 1");
  CHECK(param("proj.weight") == "f32[8,8] 1");
  CHECK(param("proj.bias") == "f32[8] -1");
  CHECK(param("fc1.weight") == "f32[32,8] 0");
  CHECK(param("fc1.bias") == "f32[32] 0");
  CHECK(param("fc2.weight") == "f32[8,32] 1");
  CHECK(spec.call(spec.find_call("attn0")).pieces == 2);
  CHECK(spec.call(spec.find_call("mlp0")).pieces == 32);
  for (const char* name : {"norm1.0", "add1.0", "norm2.0", "add2.0", "norm"})
    CHECK(spec.call(spec.find_call(name)).cut == ir::Cut::Tokens);
  for (const char* name : {"embed", "head", "loss"})
    CHECK(spec.call(spec.find_call(name)).cut == ir::Cut::None);
}

TEST_CASE("gpt's calls are annotated by layer") {
  Model model = built(
      make_gpt(R"({"layers": 2, "d_model": 8, "heads": 2, "seq": 4, "batch": 2, "tied": true})"));
  const ir::ModelSpec& spec = *model.spec;
  for (const char* name : {"embed", "head", "loss"})
    CHECK(tags(model, name).empty());
  for (const char* name : {"attn1", "mlp1"})
    CHECK(tags(model, name) == "layer=1");
  CHECK(spec.segments() == std::vector<uint32_t>{0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 3, 3, 3});
  auto parsed = ir::ModelSpec::parse(spec.to_text());
  REQUIRE(parsed.ok());
  CHECK((*parsed == spec));
  CHECK_FALSE(spec.find_param("head.weight").valid());
  CHECK(spec.call(spec.find_call("head")).params.back() == spec.find_param("tok.weight"));
}

TEST_CASE("llama's calls are cut where parallel parts meet") {
  Model model = built(make_llama(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "seq": 4, "batch": 2})"));
  const ir::ModelSpec& spec = *model.spec;
  std::vector<std::string> calls;
  for (const ir::ModelCall& call : spec.calls)
    calls.push_back(call.name);
  CHECK(calls == std::vector<std::string>{"embed", "norm1.0", "attn0", "add1.0", "norm2.0", "mlp0",
                                          "add2.0", "norm1.1", "attn1", "add1.1", "norm2.1", "mlp1",
                                          "add2.1", "norm", "head", "loss"});
  for (const char* name : {"embed", "norm", "head", "loss"})
    CHECK(tags(model, name).empty());
  for (const char* name : {"norm1.1", "attn1", "add1.1", "norm2.1", "mlp1", "add2.1"})
    CHECK(tags(model, name) == "layer=1");
  const auto type = [&](const char* name) {
    return spec.param(spec.find_param(name)).type.to_string();
  };
  CHECK(type("layers.1.wq") == "f32[16,16]");
  CHECK(type("layers.1.wk") == "f32[8,16]");
  CHECK(type("layers.1.wv") == "f32[8,16]");
  CHECK(type("layers.1.wo") == "f32[16,16]");
  for (const char* name : {"layers.0.w_gate", "layers.0.w_up", "layers.0.w_down"})
    CHECK(type(name) == "f32[48,16]"); // 8/3 of 16, a multiple of 8
  // Per row of 4 tokens: four projections, and attention to half of the positions.
  CHECK(spec.call(spec.find_call("attn0")).flops_per_row ==
        2 * 4 * (16 * 16 + 8 * 16 + 8 * 16 + 16 * 16) + 2 * 4 * 4 * 16);
}

TEST_CASE("moe says how its calls are cut") {
  Model model = built(make_moe(R"({"layers": 1, "d_model": 16, "heads": 4, "kv_heads": 2,
      "experts": 4, "top_k": 2, "d_ff": 12, "seq": 8, "batch": 2})"));
  const ir::ModelSpec& spec = *model.spec;
  const ir::ModelCall& experts = spec.call(spec.find_call("experts0"));
  CHECK(experts.cut == ir::Cut::Experts);
  CHECK(experts.pieces == 4);
  CHECK(spec.value(experts.counts).name == "route0.1");
  CHECK(spec.value(experts.counts).type.to_string() == "i64[1,4]");
  CHECK(spec.value(spec.find_value("experts0")).type.to_string() == "f32[16*B,16]");
  CHECK(spec.param(spec.find_param("layers.0.w_gate")).cut == 0);
  const ir::ModelCall& attention = spec.call(spec.find_call("attn0"));
  CHECK(attention.cut == ir::Cut::Tensor);
  CHECK(spec.param(spec.find_param("layers.0.wq")).cut == 0);
  CHECK(spec.param(spec.find_param("layers.0.q_norm")).cut == -1);
  CHECK(spec.call(spec.find_call("norm1.0")).cut == ir::Cut::Tokens);
  CHECK(spec.call(spec.find_call("route0")).cut == ir::Cut::None);
}

TEST_CASE("losses and initial weights equal PyTorch's") {
  const bool tied = GENERATE(false, true);
  const std::string kind = GENERATE("gpt", "llama", "moe");
  if (kind == "moe" && tied)
    return; // it cannot be
  CAPTURE(kind, tied);
  constexpr int kIterations = 10, kParts = 2, kSeed = 3;
  const std::string sizes = kind == "gpt"     ? "gpt.py 2 16 2"
                            : kind == "llama" ? "llama.py 2 16 4 2 24"
                                              : "moe.py 2 16 4 2 4 2 12";
  auto reference = nlohmann::json::parse(output_of(
      fmt::format("{} {}/tests/frontend/reference_{} 8 4 {} {} {} {} {}", PIPER_PYTHON,
                  PIPER_SOURCE_DIR, sizes, kParts, tied ? 1 : 0, kIterations, kSeed, kLicenses)));
  nlohmann::json config{{"layers", 2},
                        {"d_model", 16},
                        {"heads", kind == "gpt" ? 2 : 4},
                        {"seq", 8},
                        {"batch", 4},
                        {"seed", kSeed},
                        {"dtype", "float64"},
                        {"sample_microbatches", kParts}};
  if (kind != "moe")
    config["tied"] = tied;
  if (kind == "llama")
    config.update({{"kv_heads", 2}, {"d_ff", 24}});
  if (kind == "moe")
    config.update({{"kv_heads", 2}, {"experts", 4}, {"top_k", 2}, {"d_ff", 12}});
  Model model = built((kind == "gpt"     ? make_gpt
                       : kind == "llama" ? make_llama
                                         : make_moe)(config.dump()));
  at::set_num_threads(1);
  testing::ReferenceTrainer trainer(model, kSeed, {}, kParts);

  auto parameters = trainer.parameters();
  CHECK(parameters.size() == reference["weights"].size());
  for (const auto& [name, tensor] : parameters) {
    CAPTURE(name);
    std::vector<uint64_t> words(static_cast<size_t>(tensor.numel()));
    const at::Tensor in_order = tensor.contiguous();
    std::memcpy(words.data(), in_order.data_ptr<double>(), words.size() * sizeof(uint64_t));
    CHECK(fnv(words) == reference["weights"].at(name).get<uint64_t>());
  }
  double previous = INFINITY;
  for (int i = 0; i < kIterations; ++i) {
    double loss = trainer.step(i), wanted = reference["losses"][i].get<double>();
    CAPTURE(i, loss, wanted);
    CHECK(std::abs(loss - wanted) <= 1e-12 * wanted);
    CHECK(loss != previous); // it trains
    previous = loss;
  }
}

TEST_CASE("the reference's fused update and microbatches change nothing but rounding") {
  Model model = built(mlp({.layers = 5, .skip = true, .dtype = at::kDouble}));
  executor::OptimizerSpec optimizer{
      .lr = 1e-2, .clip_norm = 0.02, .warmup = 2, .decay = 20, .min_lr = 1e-4};
  using Trainer = testing::ReferenceTrainer;
  Trainer plain(model, 1, optimizer), parts(model, 1, optimizer, 4),
      fused(model, 1, optimizer, 1, Trainer::Update::Fused);
  const double before = plain.evaluate(0);
  for (int i = 0; i < 20; ++i) {
    const double loss = plain.step(i);
    CHECK(parts.step(i) == Approx(loss).epsilon(1e-9));
    CHECK(fused.step(i) == Approx(loss).epsilon(1e-9));
    CHECK(parts.grad_norm() == Approx(plain.grad_norm()).epsilon(1e-9));
    CHECK(plain.grad_norm() > 0.02); // it is clipped
  }
  CHECK(plain.evaluate(0) < before);
}

TEST_CASE("mlp's skip connections jump over two blocks") {
  Model model = built(make_mlp(R"({"layers": 5, "skip": true})"));
  const ir::ModelSpec& spec = *model.spec;
  auto inputs = [&](const char* name) {
    std::vector<std::string> names;
    for (ir::ValueId id : spec.call(spec.find_call(name)).inputs)
      names.push_back(spec.value(id).name);
    return names;
  };
  CHECK(inputs("block2") == std::vector<std::string>{"block1"});
  CHECK(inputs("block3") == std::vector<std::string>{"block2", "block0"});
  CHECK(inputs("block4") == std::vector<std::string>{"block3", "block1"});
  CHECK(tags(model, "block4") == "layer=4");
  BuiltModule block = model.build(3, 1);
  at::Tensor x = at::rand({2, 32}), skip = at::rand({2, 32});
  CHECK(block.forward({x, skip})[0].equal(block.forward({x})[0] + skip));
}

TEST_CASE("mlp's rows don't depend on how the batch is cut") {
  Model model = built(make_mlp("{}"));
  for (const char* name : {"x", "y"}) {
    at::Tensor all = model.data({name, 4, 0, 16});
    CHECK(all.slice(0, 5, 9).equal(model.data({name, 4, 5, 4})));
    CHECK_FALSE(all.equal(model.data({name, 5, 0, 16})));
    CHECK_FALSE(all.equal(model.data({name, 4, 0, 16, true})));
  }
  at::Tensor x = model.data({"x", 0, 0, 16}), y = model.data({"y", 0, 0, 16});
  CHECK(x.abs().max().item<float>() <= 1);
  CHECK(at::allclose(y.select(1, 2), x.select(1, 2) * x.select(1, 3)));
}

TEST_CASE("text is sampled as specified") {
  const std::string text = alphabet(1000);
  TemporaryFile file(text);
  TextConfig config{
      .path = file.path(), .seed = 9, .seq = 10, .batch = 6, .sample_microbatches = 3};
  auto source = text_source(config);
  REQUIRE(source.ok());
  at::Tensor tokens = (*source)({"tokens", 2, 0, 6}), targets = (*source)({"targets", 2, 0, 6});
  REQUIRE(tokens.sizes() == at::IntArrayRef({6, 10}));
  for (uint64_t row = 0; row < 6; ++row) {
    uint64_t start =
        splitmix(splitmix(splitmix(splitmix(9) + 2) + row / 2) + row % 2) % (1000 - 10 - 1);
    for (uint64_t t = 0; t < 10; ++t) {
      auto at = [&](const at::Tensor& x) {
        return x[static_cast<int64_t>(row)][static_cast<int64_t>(t)].item<int64_t>();
      };
      CHECK(at(tokens) == text[start + t]);
      CHECK(at(targets) == text[start + t + 1]);
    }
  }
  CHECK(tokens.slice(0, 3, 5).equal((*source)({"tokens", 2, 3, 2})));
  CHECK_THROWS_WITH((*source)({"tokens", 0, 0, 6, true}), Contains("set `holdout`"));
}

TEST_CASE("the default text is the licenses, links skipped, by name") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kLicenses))
    if (entry.is_regular_file() && !entry.is_symlink())
      files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string joined;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    joined.append(std::istreambuf_iterator<char>(in), {});
  }
  TemporaryFile file(joined);
  auto one = text_source({.path = file.path()}), all = text_source({});
  REQUIRE((one.ok() && all.ok()));
  CHECK((*one)({"tokens", 1, 0, 16}).equal((*all)({"tokens", 1, 0, 16})));
}

TEST_CASE("held-out text is never trained on") {
  TemporaryFile file(std::string(900, 'a') + std::string(100, 'b'));
  auto source = text_source({.path = file.path(), .seq = 10, .batch = 50, .holdout = true});
  REQUIRE(source.ok());
  CHECK((*source)({"targets", 0, 0, 50}).eq('a').all().item<bool>());
  CHECK((*source)({"tokens", 0, 0, 50, true}).eq('b').all().item<bool>());
}

TEST_CASE("texts that are refused") {
  Error missing = refused(text_source({.path = "/no/such/file"}));
  CHECK(missing.message == "cannot read the text '/no/such/file'");
  CHECK_THAT(missing.hint, Contains("path of a readable file"));
  TemporaryFile file(alphabet(100));
  CHECK(refused(text_source({.path = file.path(), .seq = 99})).message ==
        fmt::format("the text '{}' of 100 bytes is too short for sequences of 99", file.path()));
  CHECK(refused(text_source({.path = file.path(), .seq = 9, .holdout = true})).hint ==
        "it needs 110 bytes");
  CHECK_THAT(refused(text_source({.path = file.path(), .seq = 9, .vocab = 100})).message,
             Contains("has the byte 100, the vocabulary only 100"));
  CHECK(refused(text_source({.path = file.path(), .sample_microbatches = 3})).message ==
        "a batch of 16 does not split to 3 sample_microbatches");
}

TEST_CASE("configurations that are refused") {
  Error unknown = refused(make_gpt(R"({"layer": 2})"));
  CHECK(unknown.where == "gpt configuration");
  CHECK(unknown.message == "unknown key 'layer'");
  CHECK(unknown.hint == "known are layers, d_model, heads, seq, batch, vocab, tied, dtype, data, "
                        "seed, sample_microbatches, holdout");
  Error wrong = refused(make_gpt(R"({"layers": "two"})"));
  CHECK(wrong.message == "'layers' is \"two\"");
  CHECK(wrong.hint == "it must be a whole number");
  CHECK(refused(make_mlp(R"({"skip": 1})")).hint == "it must be true or false");
  CHECK(refused(make_mlp(R"({"dtype": "int8"})")).hint == "it must be \"float32\" or \"float64\"");
  CHECK(refused(make_mlp(R"({"seed": -1})")).hint == "it must be a whole number, 0 or more");
  CHECK(refused(make_mlp("[]")).message == "it is no JSON object");
  CHECK(refused(make_mlp("{\n  \"layers\": 2,\n  skip\n}")).message ==
        "malformed JSON at line 3, column 3");
  CHECK(refused(make_gpt(R"({"d_model": 10, "heads": 4})")).message ==
        "d_model 10 does not split to 4 heads");
  CHECK(refused(make_llama(R"({"heads": 256})")).message ==
        "d_model 256 does not split to 256 heads");
  CHECK(refused(make_llama(R"({"kv_heads": 3})")).message == "8 heads do not share 3 kv_heads");
  CHECK(refused(make_llama(R"({"kv_heads": 0})")).message == "kv_heads is 0");
  CHECK(refused(make_llama(R"({"rope_theta": "big"})")).hint == "it must be a number");
  CHECK(refused(make_moe(R"({"experts": 2, "top_k": 3})")).message == "top_k is 3 of 2 experts");
  CHECK(refused(make_gpt(R"({"seq": 0})")).message == "seq is 0");
  CHECK(refused(make_mlp(R"({"layers": 0})")).message == "layers is 0");
}
