// ModelBuilder: what it makes of calls, and what it refuses.
#include "compiler/frontend/model_builder.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <thread>

#include <catch2/catch.hpp>

using namespace piper;
using Catch::Matchers::Contains;

namespace {

auto linear(int64_t in, int64_t out) {
  return [=] { return torch::nn::Linear(in, out); };
}
at::Tensor mean(const at::Tensor& x) {
  return x.mean();
}

/// The input x: f32[B,4], of 6 rows.
Value input(ModelBuilder& b) {
  return b.input("x", {6, 4}, at::kFloat);
}

std::string type(const Model& model, const char* value) {
  return model.spec->value(model.spec->find_value(value)).type.to_string();
}
const ir::ModelCall& call(const Model& model, const char* name) {
  return model.spec->call(model.spec->find_call(name));
}
std::vector<std::string> params(const Model& model, const char* name) {
  std::vector<std::string> names;
  for (ir::ParamId id : call(model, name).params)
    names.push_back(model.spec->param(id).name);
  return names;
}
using Names = std::vector<std::string>;
/// "stage=0 layer=1"
std::string tags(const Model& model, const char* name) {
  std::string text;
  for (const ir::Tag& tag : call(model, name).annotations)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", tag.name, tag.index);
  return text;
}

/// The error of the model that ends with the mean of `last`.
Error error_of(ModelBuilder& b, Value last) {
  auto model = b.loss(b.call("mean", mean, last));
  REQUIRE_FALSE(model.ok());
  CHECK(model.error().kind == ErrorKind::User);
  return model.error();
}
/// The error of a model of the one call.
template <class What> Error error_of(What what) {
  ModelBuilder b;
  return error_of(b, b.call("f", what, input(b)));
}

} // namespace

TEST_CASE("calls, annotations and parameters in trace order") {
  ModelBuilder b("chain");
  Value x = input(b);
  x = b.call("first", linear(4, 3), x);
  for (int stage = 0; stage < 2; ++stage) {
    auto outer = b.annotate("stage");
    for (int i = 0; i < 2; ++i) {
      auto inner = b.annotate("layer");
      x = b.call({fmt::format("block{}", 2 * stage + i), fmt::format("blocks.{}", 2 * stage + i)},
                 linear(3, 3), x);
    }
    auto extra = b.annotate("extra", 7);
    x = b.call(
        fmt::format("gelu{}", stage), [](const at::Tensor& y) { return at::gelu(y); }, x);
  }
  auto model = b.loss(b.call({.name = "mean", .flops_per_row = 5}, mean, x));
  REQUIRE(model.ok());
  const ir::ModelSpec& spec = *model->spec;

  CHECK(spec.name == "chain");
  CHECK(spec.batch == 6);
  Names calls;
  for (const ir::ModelCall& c : spec.calls)
    calls.push_back(c.name);
  CHECK(calls == Names{"first", "block0", "block1", "gelu0", "block2", "block3", "gelu1", "mean"});
  CHECK(tags(*model, "first").empty());
  CHECK(tags(*model, "block1") == "stage=0 layer=1");
  CHECK(tags(*model, "block2") == "stage=1 layer=2");
  CHECK(tags(*model, "gelu1") == "stage=1 extra=7");
  CHECK(tags(*model, "mean").empty());
  CHECK(spec.segments() == std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7});

  CHECK(params(*model, "first") == Names{"first.weight", "first.bias"});
  CHECK(params(*model, "block3") == Names{"blocks.3.weight", "blocks.3.bias"});
  CHECK(params(*model, "gelu0").empty());
  CHECK(spec.param(spec.find_param("first.weight")).type.to_string() == "f32[3,4]");

  CHECK(type(*model, "x") == "f32[B,4]");
  CHECK(type(*model, "block3") == "f32[B,3]");
  CHECK(type(*model, "mean") == "f32[]");
  CHECK_FALSE(spec.value(spec.inputs[0]).differentiable);
  CHECK(spec.value(spec.find_value("first")).differentiable);
  CHECK(spec.value(spec.loss).name == "mean");

  CHECK(call(*model, "first").flops_per_row == 2 * 3 * 4);
  CHECK(call(*model, "gelu0").flops_per_row == 0);
  CHECK(call(*model, "mean").flops_per_row == 5);
}

TEST_CASE("an embedding looks up and costs nothing; its lookup is differentiable") {
  ModelBuilder b;
  Value tokens = b.input("tokens", {4, 5}, at::kLong);
  Value x = b.call(
      "embed", [] { return torch::nn::Embedding(10, 3); }, tokens);
  Value y = b.call("head", linear(3, 10), x);
  auto model = b.loss(y, tokens);
  REQUIRE(model.ok());
  CHECK(type(*model, "embed") == "f32[B,5,3]");
  CHECK(call(*model, "embed").flops_per_row == 0);
  CHECK(call(*model, "head").flops_per_row == 2 * 3 * 10 * 5);
  CHECK(call(*model, "loss").name == "loss");
}

TEST_CASE("the loss is annotated like the last call, and computes cross entropy") {
  ModelBuilder b;
  Value tokens = b.input("tokens", {4}, at::kLong);
  Value logits = [&] {
    auto layer = b.annotate("layer");
    return b.call(
        "embed", [] { return torch::nn::Embedding(10, 10); }, tokens);
  }();
  auto model = b.loss(logits, tokens);
  REQUIRE(model.ok());
  CHECK(tags(*model, "loss") == "layer=0");
  BuiltModule loss = model->build(model->call_module[1], 1);
  CHECK(loss.module == nullptr);
  at::Tensor wanted = at::scalar_tensor(std::log(10.0), at::kFloat);
  CHECK(at::allclose(loss.forward({at::zeros({4, 10}), at::arange(4)})[0], wanted));
}

TEST_CASE("branches, skip connections, several inputs and outputs") {
  ModelBuilder b;
  Value x = input(b), z = b.input("z", {6, 4}, at::kFloat);
  Value h = b.call("h", linear(4, 4), x);
  auto [low, high] = b.call(
      "halves",
      [](const at::Tensor& a, const at::Tensor& skip) {
        auto halves = (a + skip).chunk(2, 1);
        return std::make_tuple(halves[0], halves[1]);
      },
      h, z);
  Values thirds = b.call(
      "thirds",
      [](const at::Tensor& a) {
        return a.repeat({1, 3}).chunk(3, 1);
      },
      high);
  REQUIRE(thirds.size() == 3);
  Value joined = b.call(
      "joined", [](const Tensors& all) { return at::cat(all, 1); },
      std::vector<Value>{low, thirds[0], thirds[2]}, x);
  auto model = b.loss(b.call("mean", mean, joined));
  REQUIRE(model.ok());
  CHECK(type(*model, "halves") == "f32[B,2]");
  CHECK(type(*model, "halves.1") == "f32[B,2]");
  CHECK(type(*model, "thirds.2") == "f32[B,2]");
  CHECK(type(*model, "joined") == "f32[B,10]");
  CHECK(call(*model, "joined").inputs.size() == 4);
  BuiltModule halves = model->build(model->call_module[1], 1);
  Tensors out = halves.forward({at::arange(8).view({2, 4}), at::ones({2, 4})});
  REQUIRE(out.size() == 2);
  CHECK(out[1].equal(at::tensor({3.f, 4.f, 7.f, 8.f}).view({2, 2})));
}

TEST_CASE("the batch dimension is found where it is") {
  ModelBuilder b;
  Value x = b.input("x", {6, 4, 2}, at::kFloat);
  Value turned = b.call(
      "turned", [](const at::Tensor& t) { return t.transpose(0, 1); }, x);
  Value flat = b.call(
      "flat",
      [](const at::Tensor& t) {
        return t.reshape({-1, 2});
      },
      turned);
  Value index = b.call(
      "index", [](const at::Tensor& t) { return t.argmax(1); }, flat);
  Value y = b.call("y", linear(2, 1), flat);
  auto model = b.loss(b.call(
      "mean", [](const at::Tensor& a, const at::Tensor& i) { return (a + i.unsqueeze(1)).mean(); },
      y, index));
  REQUIRE(model.ok());
  CHECK(type(*model, "turned") == "f32[4,B,2]");
  CHECK(type(*model, "flat") == "f32[4*B,2]");
  CHECK(type(*model, "index") == "i64[4*B]");
  CHECK_FALSE(model->spec->value(model->spec->find_value("index")).differentiable);
}

TEST_CASE("a module called twice shares its parameters") {
  ModelBuilder b;
  auto shared = b.module("shared", linear(4, 4), "");
  Value x = b.call("one", shared, input(b));
  x = b.call("two", shared, x);
  auto model = b.loss(b.call("mean", mean, x));
  REQUIRE(model.ok());
  CHECK(model->spec->params.size() == 2);
  CHECK(params(*model, "one") == Names{"weight", "bias"});
  CHECK(params(*model, "two") == params(*model, "one"));
  CHECK(model->call_module == std::vector<uint32_t>{0, 0, 1});
}

TEST_CASE("a piece of a module has its part of one dimension of some parameters") {
  struct Joined : torch::nn::Module {
    explicit Joined(const std::vector<std::vector<int64_t>>& shapes) {
      for (size_t i = 0; i < shapes.size(); ++i)
        weights.push_back(register_parameter(fmt::format("w{}", i), at::zeros(shapes[i])));
    }
    at::Tensor forward(const at::Tensor& x) { return x * weights[0].sum(); }
    std::vector<at::Tensor> weights;
  };
  using Shapes = std::vector<std::vector<int64_t>>;
  const auto model = [](Shapes whole, Shapes piece) {
    ModelBuilder b;
    Value x = b.call(
        {.name = "a", .cut = {ir::Cut::Tensor, 2}},
        [=](Piece its) { return std::make_shared<Joined>(its.count == 1 ? whole : piece); },
        input(b));
    return b.loss(b.call("mean", mean, x));
  };
  const auto cuts = model({{4, 6}, {3, 6}, {3, 2, 4}, {5}}, {{2, 6}, {3, 3}, {3, 1, 4}, {5}});
  REQUIRE(cuts.ok());
  std::vector<int> dims;
  for (const ir::ModelParam& param : cuts->spec->params)
    dims.push_back(param.cut);
  CHECK(dims == std::vector<int>{0, 1, 1, -1});

  const auto refused = [&](Shapes whole, Shapes piece) {
    const auto made = model(std::move(whole), std::move(piece));
    REQUIRE_FALSE(made.ok());
    CHECK(made.error().hint == "a piece has the whole parameter, or its part of one dimension");
    return made.error().message;
  };
  CHECK(refused({{4, 6}}, {{2, 3}}) ==
        "in one of 2 pieces its parameter 'w0' of shape [4,6] is [2,3]");
  CHECK(refused({{4, 6}}, {{4, 2}}) ==
        "in one of 2 pieces its parameter 'w0' of shape [4,6] is [4,2]");
  CHECK(refused({{4, 6}}, {{12}}) ==
        "in one of 2 pieces its parameter 'w0' of shape [4,6] is [12]");
  CHECK(refused({{4}, {4}}, {{2}}) ==
        "in one of 2 pieces its parameter 'w1' of shape [4] is missing");
}

TEST_CASE("a parameter that is cut in one call alone cannot be tied") {
  struct Scale : torch::nn::Module {
    explicit Scale(int64_t size) { weight = register_parameter("weight", at::zeros({size, 4})); }
    at::Tensor forward(const at::Tensor& x) { return x * weight.sum(); }
    at::Tensor weight;
  };
  ModelBuilder b;
  Value x = b.call(
      "a", [] { return std::make_shared<Scale>(4); }, input(b));
  x = b.call(
      {.name = "b", .cut = {ir::Cut::Tensor, 2}},
      [](Piece piece) { return std::make_shared<Scale>(4 / piece.count); }, x);
  b.tie("b.weight", "a.weight");
  const auto model = b.loss(b.call("mean", mean, x));
  REQUIRE_FALSE(model.ok());
  CHECK(model.error().message ==
        "of 'b.weight' and 'a.weight' a call that is cut cuts only one, or another dimension");
}

TEST_CASE("tied parameters are one, with one value wherever they are built") {
  ModelBuilder b;
  b.tie("c.weight", "b.weight");
  Value x = b.call("a", linear(4, 4), input(b));
  x = b.call("b", linear(4, 4), x);
  x = b.call("c", linear(4, 4), x);
  b.tie("b.weight", "a.weight");
  auto model = b.loss(b.call("mean", mean, x));
  REQUIRE(model.ok());
  CHECK(model->spec->params.size() == 4);
  CHECK(params(*model, "a") == Names{"a.weight", "a.bias"});
  CHECK(params(*model, "c") == Names{"a.weight", "c.bias"});
  auto weight = [&](uint32_t module) {
    return model->build(module, 3).module->named_parameters()["weight"].detach();
  };
  CHECK(weight(0).equal(weight(1)));
  CHECK(weight(0).equal(weight(2)));

  model->initializer = [](const std::string& name, at::Tensor& tensor, uint64_t seed) {
    tensor.fill_(static_cast<double>(name.size() + seed));
    return name != "c.bias";
  };
  CHECK(weight(2).equal(at::full({4, 4}, 8 + 3.0)));
}

TEST_CASE("a tensor that a module registers twice is one parameter") {
  struct Twice : torch::nn::Module {
    Twice() {
      a = register_parameter("a", at::ones({4}));
      register_parameter("b", a);
    }
    at::Tensor forward(const at::Tensor& x) { return x * a; }
    at::Tensor a;
  };
  ModelBuilder b;
  Value x = b.call(
      "f", [] { return std::make_shared<Twice>(); }, input(b));
  auto model = b.loss(b.call("mean", mean, x));
  REQUIRE(model.ok());
  CHECK(params(*model, "f") == Names{"f.a"});
  REQUIRE(model->modules[0].params.size() == 2);
  CHECK(model->modules[0].params[0].second == model->modules[0].params[1].second);
}

TEST_CASE("initial weights are a function of the seed and the module's name") {
  ModelBuilder b;
  Value x = b.call("a", linear(4, 4), input(b));
  x = b.call("b", linear(4, 4), x);
  auto model = b.loss(b.call("mean", mean, x));
  REQUIRE(model.ok());
  auto weight = [&](uint32_t module, uint64_t seed) {
    return model->build(module, seed).module->named_parameters()["weight"].detach();
  };
  at::Tensor first = weight(0, 1);
  CHECK(weight(0, 1).equal(first));
  CHECK_FALSE(weight(0, 2).equal(first));
  CHECK_FALSE(weight(1, 1).equal(first));

  // The program's own random numbers go on as if nothing had been built.
  torch::manual_seed(5);
  at::Tensor undisturbed = at::rand({3});
  torch::manual_seed(5);
  weight(0, 1);
  CHECK(at::rand({3}).equal(undisturbed));

  std::vector<at::Tensor> built(4);
  std::vector<std::thread> threads;
  for (at::Tensor& tensor : built)
    threads.emplace_back([&] { tensor = weight(0, 1); });
  for (std::thread& thread : threads)
    thread.join();
  for (const at::Tensor& tensor : built)
    CHECK(tensor.equal(first));
}

TEST_CASE("modules are converted to the model's dtype") {
  ModelBuilder b;
  b.dtype(at::kDouble);
  Value x = b.input("x", {2, 4}, at::kDouble);
  auto model = b.loss(b.call("mean", mean, b.call("f", linear(4, 4), x)));
  REQUIRE(model.ok());
  CHECK(type(*model, "f") == "f64[B,4]");
  CHECK(model->spec->params[0].type.dtype == ir::DType::F64);
  BuiltModule built = model->build(0, 1);
  CHECK(built.forward({at::ones({2, 4}, at::kDouble)})[0].scalar_type() == at::kDouble);
}

TEST_CASE("mismatches are told with the call, the shapes and LibTorch's reason") {
  Error error = error_of(linear(5, 3));
  CHECK(error.where == "call 'f'");
  CHECK(error.message ==
        "it cannot take f32[B,4]: mat1 and mat2 shapes cannot be multiplied (2x4 and 5x3)");

  ModelBuilder b;
  Value x = input(b);
  Value y = b.call("y", linear(4, 3), x);
  error =
      error_of(b, b.call(
                      "sum", [](const at::Tensor& a, const at::Tensor& c) { return a + c; }, x, y));
  CHECK(error.where == "call 'sum'");
  CHECK_THAT(error.message, Contains("f32[B,4], f32[B,3]") && Contains("must match the size"));
}

TEST_CASE("what a call may not do") {
  SECTION("fail to be made") {
    Error error = error_of([]() -> torch::nn::Linear { throw std::runtime_error("no such size"); });
    CHECK(error.message == "its factory failed: no such size");
  }
  SECTION("change buffers") {
    Error error = error_of([] { return torch::nn::BatchNorm1d(4); });
    CHECK_THAT(error.message, Contains("it changes its buffer 'running_var'") ||
                                  Contains("it changes its buffer 'num_batches_tracked'"));
  }
  SECTION("have frozen parameters") {
    Error error = error_of([] {
      torch::nn::Linear frozen(4, 4);
      frozen->bias.requires_grad_(false);
      return frozen;
    });
    CHECK(error.message == "its parameter 'f.bias' takes no gradient");
    CHECK_THAT(error.hint, Contains("buffer"));
  }
  SECTION("write to its input") {
    Error error = error_of([](const at::Tensor& x) { return at::Tensor(x).add_(1); });
    CHECK(error.message == "it writes to its input 0");
  }
  SECTION("return nothing") {
    Error error = [] {
      ModelBuilder b;
      Values none = b.call(
          "f", [](const Tensors&) { return Tensors{}; }, input(b));
      return error_of(b, none[0]);
    }();
    CHECK(error.message == "it returns no tensor");
    CHECK(error_of([](const at::Tensor&) { return at::Tensor(); }).message ==
          "its output 0 is an undefined tensor");
  }
  SECTION("return an unknown type") {
    CHECK_THAT(error_of([](const at::Tensor& x) { return at::complex(x, x); }).message,
               Contains("unsupported element type ComplexFloat"));
  }
  SECTION("pair rows with rows") {
    CHECK(error_of([](const at::Tensor& x) { return x.mm(x.t()); }).message ==
          "dimensions 0 and 1 of its output 0 both grow with the batch rows: shape [2,2] with 2 "
          "rows and [3,3] with 3");
  }
  SECTION("add a row") {
    CHECK(error_of([](const at::Tensor& x) {
            return at::cat({x, at::ones({1, 4})});
          }).message ==
          "dimension 0 of its output 0 is no multiple of the batch rows: shape [3,4] with 2 rows "
          "and [4,4] with 3");
  }
  SECTION("change its number of dimensions or outputs") {
    CHECK_THAT(
        error_of([](const at::Tensor& x) { return x.size(0) == 2 ? x : x.flatten(); }).message,
        Contains("its output 0 has shape [2,4] with 2 rows and [12] with 3"));
    ModelBuilder b;
    Values parts = b.call(
        "f", [](const at::Tensor& x) { return x.split(1); }, input(b));
    CHECK(error_of(b, parts[0]).message == "it returns 2 tensors for 2 rows and 3 for 3");
  }
}

TEST_CASE("a constant buffer is no state") {
  struct Masked : torch::nn::Module {
    Masked() { mask = register_buffer("mask", at::ones({4}, at::kLong)); }
    at::Tensor forward(const at::Tensor& x) { return x * mask; }
    at::Tensor mask;
  };
  ModelBuilder b;
  b.dtype(at::kDouble);
  Value x = b.call("f", linear(4, 4), b.input("x", {2, 4}, at::kDouble));
  x = b.call(
      "masked", [] { return std::make_shared<Masked>(); }, x);
  auto model = b.loss(b.call("mean", mean, x));
  REQUIRE(model.ok());
  CHECK(model->build(1, 1).module->buffers()[0].scalar_type() == at::kLong);
}

TEST_CASE("names must be unique and plain") {
  SECTION("calls") {
    ModelBuilder b;
    Value x = b.call("f", linear(4, 4), input(b));
    CHECK(error_of(b, b.call("f", linear(4, 4), x)).message ==
          "there are two calls or modules named 'f'");
  }
  SECTION("an input and a call") {
    ModelBuilder b;
    Error error = error_of(b, b.call("x", linear(4, 4), input(b)));
    CHECK(error.where == "call 'x'");
    CHECK(error.message == "there are two values or calls named 'x'");
  }
  SECTION("parameters") {
    ModelBuilder b;
    Value x = b.call({.name = "f", .prefix = "p"}, linear(4, 4), input(b));
    Error error = error_of(b, b.call({.name = "g", .prefix = "p"}, linear(4, 4), x));
    CHECK(error.where == "call 'g'");
    CHECK(error.message == "there are two parameters named 'p.weight'");
    CHECK_THAT(error.hint, Contains("`tie`"));
  }
  SECTION("spaces") {
    ModelBuilder b;
    CHECK(error_of(b, b.call("a b", linear(4, 4), input(b))).message ==
          "'a b' cannot be the name of a call or module");
  }
  SECTION("annotations") {
    ModelBuilder reserved;
    auto pass = reserved.annotate("PASS");
    CHECK_THAT(error_of(reserved, input(reserved)).message, Contains("'PASS' has a meaning"));
    ModelBuilder nested;
    auto outer = nested.annotate("layer");
    auto inner = nested.annotate("layer");
    CHECK(error_of(nested, input(nested)).message ==
          "the annotation 'layer = 1' is inside of 'layer = 0'");
  }
}

TEST_CASE("values and modules belong to one builder") {
  ModelBuilder other;
  Value foreign = input(other);
  auto module = other.module("m", linear(4, 4));
  for (Value value : {foreign, Value()}) {
    ModelBuilder b;
    Error error = error_of(b, b.call("f", linear(4, 4), value));
    CHECK(error.where == "call 'f'");
    CHECK(error.message == "its input 0 is no value of this model");
  }
  ModelBuilder b;
  CHECK(error_of(b, b.call("f", module, input(b))).message == "its module is of another builder");
  ModelBuilder c;
  auto own = c.module("m", linear(4, 4));
  CHECK(error_of(c, c.call({.name = "f", .prefix = "p"}, own, input(c))).message ==
        "its module has a prefix already");
}

TEST_CASE("inputs have rows, all the same number") {
  auto refused = [](std::vector<int64_t> shape, c10::ScalarType dtype) {
    ModelBuilder b;
    input(b);
    return error_of(b, b.input("z", std::move(shape), dtype));
  };
  Error error = refused({5, 4}, at::kFloat);
  CHECK(error.where == "input 'z'");
  CHECK(error.message == "it has 5 rows, 'x' has 6");
  CHECK(refused({}, at::kFloat).message == "its shape is []");
  CHECK(refused({6, 0}, at::kFloat).message == "its shape is [6,0]");
  CHECK(refused({6}, at::kComplexFloat).message ==
        "its element type ComplexFloat is not supported");
  ModelBuilder b;
  b.dtype(at::kLong);
  CHECK(error_of(b, input(b)).message == "a model cannot compute in Long");
}

TEST_CASE("what is tied must exist and fit") {
  auto tied = [](const char* name, const char* of) {
    ModelBuilder b;
    b.tie(name, of);
    Value x = b.call("f", linear(4, 4), input(b));
    return error_of(b, b.call("g", linear(4, 5), x));
  };
  Error error = tied("g.weight", "h.weight");
  CHECK(error.where == "tie('g.weight', 'h.weight')");
  CHECK(error.message == "there is no parameter 'h.weight'");
  CHECK(tied("g.weight", "f.weight").message ==
        "'g.weight' is f32[5,4] and 'f.weight' is f32[4,4]");
}

TEST_CASE("the loss is a differentiable scalar that everything reaches") {
  auto error = [](Result<Model> model) {
    REQUIRE_FALSE(model.ok());
    return model.error();
  };
  ModelBuilder b;
  Value x = input(b);
  Value f = b.call("f", linear(4, 4), x);
  CHECK(error(b.loss(f)).where == "call 'f'");
  CHECK(error(b.loss(f)).message == "the loss is no scalar but f32[B,4]");
  CHECK(error(b.loss(Value())).message == "the loss is no value of this model");
  Value fixed = b.call("fixed", mean, x);
  CHECK(error(b.loss(fixed)).message == "the loss is not differentiable");
  Value loss = b.call("mean", mean, f);
  Error unused = error(b.loss(loss));
  CHECK(unused.where == "call 'fixed'");
  CHECK(unused.message == "none of its outputs reaches the loss");

  ModelBuilder unread;
  input(unread);
  Value y = unread.input("y", {6, 4}, at::kFloat);
  Error not_read = error_of(unread, unread.call("f", linear(4, 4), y));
  CHECK(not_read.where == "input 'x'");
  CHECK(not_read.message == "no call reads it");

  ModelBuilder uncalled;
  uncalled.module("spare", linear(4, 4));
  CHECK(error_of(uncalled, uncalled.call("f", linear(4, 4), input(uncalled))).message ==
        "the module 'spare' is never called");
}

TEST_CASE("the first error is the one that is told") {
  ModelBuilder b;
  Value x = b.call("bad", linear(5, 3), input(b));
  auto [one, two] = b.call(
      "worse", [](const at::Tensor& t) { return std::make_pair(t, t); }, x);
  Values many = b.call(
      "worst", [](const at::Tensor& t) { return t.chunk(2); }, two);
  CHECK(error_of(b, many[7]).where == "call 'bad'");
}
