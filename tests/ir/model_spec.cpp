#include "ir/model_spec.h"
#include "tests/ir/generators.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

TEST_CASE("a model prints as calls between values") {
  CHECK(tied_spec(1)->to_text() == R"(model tied batch 16
value x f32[B,4]
value embed f32[B,4] differentiable
value l0 f32[B,4] differentiable
value y f32[B,4]
value loss f32[] differentiable
param table f32[8,4]
param l0.w f32[4,4]
call embed (x) uses table -> embed
call l0 [layer=0] (embed) uses l0.w -> l0
call loss (l0, y) uses table -> loss
inputs x, y
loss loss
)");
}

TEST_CASE("models verify, parse back, and are told apart by their fingerprint") {
  std::vector<std::shared_ptr<const ModelSpec>> specs = {chain_spec(3), chain_spec(4), skip_spec(3),
                                                         tied_spec(3), chain_spec(3, 8)};
  for (size_t i = 0; i < specs.size(); ++i) {
    CHECK(verify(*specs[i]).ok());
    auto parsed = ModelSpec::parse(specs[i]->to_text());
    REQUIRE(parsed.ok());
    CHECK(*parsed == *specs[i]);
    for (size_t j = 0; j < i; ++j)
      CHECK(specs[i]->fingerprint() != specs[j]->fingerprint());
  }
}

TEST_CASE("consecutive calls with one annotation stack are a segment") {
  SpecBuilder b("m");
  ValueId x = b.input("x");
  x = b.linear("a", {{"layer", 0}}, {x});
  x = b.linear("b", {{"layer", 0}}, {x});
  x = b.linear("c", {{"layer", 0}, {"half", 1}}, {x});
  x = b.linear("d", {{"layer", 0}}, {x});
  CHECK(b.loss({x})->segments() == std::vector<uint32_t>{0, 0, 1, 2, 3});
}

TEST_CASE("things are found by name") {
  auto spec = chain_spec(2);
  CHECK(spec->call(spec->find_call("l1")).name == "l1");
  CHECK(spec->value(spec->find_value("y")).name == "y");
  CHECK(spec->param(spec->find_param("l0.w")).name == "l0.w");
  CHECK(!spec->find_call("l9"));
}

TEST_CASE("errors in a model's text name the line") {
  auto error = [](const char* text) {
    const Error e = ModelSpec::parse(text).error();
    CHECK(e.kind == ErrorKind::User);
    return e.to_string();
  };
  CHECK(error("") == "line 0: expected \"model\", found the end of the line");
  CHECK(error("model m batch 1\nvalue a f32[]\n\nvalue a f32[]") == "line 4: a second value \"a\"");
  CHECK(error("model m batch 1\ncall c (x)") == "line 2: there is no value \"x\"");
  CHECK(error("model m batch 1\nvalue x f32[]\ncall c (x) uses w") ==
        "line 3: there is no parameter \"w\"");
  CHECK(error("model m batch 1\nvalue x f32[]\ncall c [layer] (x)") ==
        "line 3: expected a tag like layer=3, found \"layer\"");
  CHECK(error("model m batch 1\nvalue x f32[]\ncall a () -> x\ncall b () -> x") ==
        "line 4: value \"x\" is made twice");
  CHECK(error("model m batch 1 # comment\nwhat") ==
        "line 2: expected \"value\", \"param\", \"call\", \"memory\", \"inputs\" or \"loss\", "
        "found \"what\"");
  CHECK(error("model \"m batch 1") == "line 1: a quoted name has no closing quote");
}

TEST_CASE("a model that breaks a rule is refused") {
  auto error = [](auto breakage) {
    ModelSpec spec = *chain_spec(2);
    breakage(spec);
    const auto result = verify(spec);
    REQUIRE(!result.ok());
    CHECK(result.error().where == "model chain");
    return result.error().message;
  };
  CHECK(error([](ModelSpec& m) { m.calls[1].name = m.calls[0].name; }) ==
        "two calls are named \"l0\"");
  CHECK(error([](ModelSpec& m) { m.values[1].name = m.values[0].name; }) ==
        "two values are named \"x\"");
  CHECK(error([](ModelSpec& m) { m.params[1].name = m.params[0].name; }) ==
        "two parameters are named \"l0.w\"");
  CHECK(error([](ModelSpec& m) { m.batch = 0; }) == "the batch has 0 rows");
  CHECK(error([](ModelSpec& m) { m.calls[0].inputs = {ValueId(2)}; }) ==
        "call l0 reads \"l1\" before it is made");
  CHECK(error([](ModelSpec& m) { m.calls[0].inputs = {ValueId(99)}; }) ==
        "call l0 reads value 99, which does not exist");
  CHECK(error([](ModelSpec& m) { m.calls[0].params = {ParamId(99)}; }) ==
        "call l0 uses parameter 99, which does not exist");
  CHECK(error([](ModelSpec& m) { m.calls[1].outputs.clear(); }) == "call l1 has no outputs");
  CHECK(error([](ModelSpec& m) { m.calls[1].outputs = {ValueId(1)}; }) ==
        "value \"l0\" is made twice");
  CHECK(error([](ModelSpec& m) { m.values[2].producer = CallId(0); }) ==
        "value \"l1\" does not name call l1 as its producer");
  CHECK(error([](ModelSpec& m) { m.inputs.pop_back(); }) ==
        "call loss reads \"y\" before it is made");
  CHECK(error([](ModelSpec& m) { m.inputs.push_back(ValueId(0)); }) == "\"x\" is an input twice");
  CHECK(error([](ModelSpec& m) { m.inputs.push_back(ValueId(1)); }) ==
        "input \"l0\" is made by a call");
  CHECK(error([](ModelSpec& m) { m.params[0].type.batch_dim = 0; }) ==
        "parameter \"l0.w\" has batch rows");
  CHECK(error([](ModelSpec& m) { m.loss = {}; }) == "there is no loss");
  CHECK(error([](ModelSpec& m) { m.loss = ValueId(1); }) ==
        "the loss \"l0\" is no scalar: it is f32[B,4]");
  CHECK(error([](ModelSpec& m) {
          m.values.push_back({"z", {}, false, {}});
        }) == "value \"z\" is neither an input nor made by a call");
}
