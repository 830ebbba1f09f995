#include "tests/compiler/models.h"

#include <fstream>
#include <sstream>

#include <catch2/catch.hpp>

namespace piper::test {

using namespace ir;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  INFO(path);
  REQUIRE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::shared_ptr<const ModelSpec> load_model(const std::string& name) {
  auto model = ModelSpec::parse(
      read_file(std::string(PIPER_SOURCE_DIR) + "/tests/compiler/models/" + name + ".model"));
  if (!model.ok())
    FAIL(model.error().to_string());
  return std::make_shared<const ModelSpec>(*std::move(model));
}

std::shared_ptr<const ModelSpec> chain(int calls, int64_t batch) {
  std::string text =
      "model chain batch " + std::to_string(batch) + "\nvalue x f64[B,8]\nvalue y f64[B,8]\n";
  std::string params, lines, last = "x";
  for (int i = 0; i < calls; ++i) {
    const std::string name = "lin" + std::to_string(i);
    text += "value " + name + " f64[B,8] differentiable\n";
    params += "param " + name + ".weight f64[8,8]\n";
    lines += "call " + name + " [layer=" + std::to_string(i) + "] (" + last + ") uses " + name +
             ".weight -> " + name + " flops 128\n";
    last = name;
  }
  text += "value loss f64[] differentiable\n" + params + lines +
          "call loss [layer=" + std::to_string(calls - 1) + "] (" + last +
          ", y) -> loss\ninputs x, y\nloss loss\n";
  auto model = ModelSpec::parse(text);
  if (!model.ok())
    FAIL(model.error().to_string());
  return std::make_shared<const ModelSpec>(*std::move(model));
}

compiler::Compiled compile_ok(std::shared_ptr<const ModelSpec> model, const Strategy& strategy,
                              compiler::CompileOptions options) {
  options.verify_passes = true;
  auto compiled = compiler::compile(std::move(model), strategy, options);
  if (!compiled.ok())
    FAIL(compiled.error().to_string());
  return *std::move(compiled);
}

} // namespace piper::test
