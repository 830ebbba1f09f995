// Golden files: what goes in and what comes out, as text. Each case in tests/compiler/golden is
//   model: NAME            of tests/compiler/models
//   after: PASS | plan | strategy
//   kind: train | eval     (optional)
//   STRATEGY JSON
//   ===
//   EXPECTED TEXT
// With PIPER_UPDATE_GOLDEN set the files are rewritten with what came out: read the diff.
#include "compiler/passes/expand_schedules.h"
#include "tests/compiler/models.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;

namespace {

struct Case {
  std::map<std::string, std::string> fields;
  std::string head, strategy, expected;
};

Case read_case(const std::string& path) {
  const std::string text = read_file(path);
  const size_t cut = text.find("===\n");
  REQUIRE(cut != std::string::npos);
  Case result{.head = text.substr(0, cut), .expected = text.substr(cut + 4)};
  std::istringstream lines(result.head);
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (result.strategy.empty() && colon != std::string::npos && line[0] != '[')
      result.fields[line.substr(0, colon)] = line.substr(colon + 2);
    else
      result.strategy += line + "\n";
  }
  return result;
}

std::string produce(const Case& test, const std::string& path) {
  auto model = load_model(test.fields.at("model"));
  auto strategy = ir::Strategy::parse(test.strategy, std::filesystem::path(path).filename());
  if (!strategy.ok())
    FAIL(strategy.error().to_string());
  const std::string after = test.fields.at("after");
  if (after == "strategy") {
    auto expanded = compiler::expand_schedules(*model, *strategy);
    if (!expanded.ok())
      FAIL(expanded.error().to_string());
    return expanded->to_json();
  }
  compiler::CompileOptions options;
  if (test.fields.contains("kind") && test.fields.at("kind") == "eval")
    options.kind = ir::PlanKind::Eval;
  if (after != "plan")
    options.stop_after = after;
  const compiler::Compiled compiled = compile_ok(model, *strategy, options);
  if (after == "plan") {
    const std::string text = compiled.plans.to_text(model.get());
    auto parsed = ir::PlanSet::parse(text);
    if (!parsed.ok())
      FAIL(parsed.error().to_string());
    CHECK(*parsed == compiled.plans);
    return text;
  }
  const std::string text = compiled.graph.to_text();
  auto parsed = ir::Graph::parse(text, model, compiled.strategy);
  if (!parsed.ok())
    FAIL(parsed.error().to_string());
  CHECK(parsed->to_text() == text);
  CHECK(parsed->fingerprint() == compiled.graph.fingerprint());
  return text;
}

} // namespace

TEST_CASE("golden files") {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(PIPER_SOURCE_DIR) +
                                                               "/tests/compiler/golden"))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  REQUIRE(paths.size() >= 10);
  for (const std::string& path : paths) {
    INFO(path);
    const Case test = read_case(path);
    const std::string text = produce(test, path);
    if (std::getenv("PIPER_UPDATE_GOLDEN"))
      std::ofstream(path) << test.head << "===\n" << text;
    else
      CHECK(text == test.expected);
  }
}
