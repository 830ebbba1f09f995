#include "tools/bench/compile.h"

#include "compiler/compile.h"
#include "compiler/simulate/ablate.h"
#include "ir/footprint.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace piper::cli {

namespace {

using namespace ir;

/// `calls` linear layers, each annotated, and a loss.
std::shared_ptr<const ModelSpec> chain(int64_t calls, int64_t batch) {
  ModelSpec model{.name = "chain", .batch = batch};
  const TensorType rows{DType::F32, {1, 64}, 0};
  auto value = [&](std::string name, TensorType type, bool differentiable) {
    const CallId producer = differentiable ? CallId(model.calls.size()) : CallId();
    model.values.push_back({std::move(name), std::move(type), differentiable, producer});
    return ValueId(model.values.size() - 1);
  };
  ValueId last = value("x", rows, false);
  const ValueId target = value("y", rows, false);
  model.inputs = {last, target};
  for (int64_t c = 0; c < calls; ++c) {
    ModelCall call{.name = fmt::format("linear{}", c), .annotations = {{"layer", c}}};
    call.flops_per_row = 2 * 64 * 64;
    call.inputs = {last};
    model.params.push_back({call.name + ".weight", {DType::F32, {64, 64}, -1}});
    call.params = {ParamId(model.params.size() - 1)};
    last = value(call.name, rows, true);
    call.outputs = {last};
    model.calls.push_back(std::move(call));
  }
  ModelCall loss{.name = "loss", .annotations = {{"layer", calls - 1}}};
  loss.inputs = {last, target};
  model.loss = value("loss", {DType::F32, {}, -1}, true);
  loss.outputs = {model.loss};
  model.calls.push_back(std::move(loss));
  return std::make_shared<const ModelSpec>(std::move(model));
}

} // namespace

Result<void> bench_compile(int64_t largest) {
  Table table({"calls", "nodes", "seconds", "us a node", "bytes a node", "longest passes"});
  for (int64_t nodes = 1000; nodes <= largest; nodes *= 10)
    for (const bool fused : {true, false}) {
      const int64_t microbatches = std::min<int64_t>(64, nodes / 20);
      const auto model = chain(nodes / (2 * microbatches), microbatches);
      Strategy strategy = Strategy().schedule("1f1b:8", microbatches);
      if (!fused) {
        PIPER_TRY(strategy, compiler::without_fusion(*model, strategy));
      }
      const auto start = std::chrono::steady_clock::now();
      PIPER_TRY(compiler::Compiled compiled, compiler::compile(model, strategy));
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const size_t bytes = bytes_of(compiled.graph) + bytes_of(compiled.plans);
      size_t most = 0; // before calls are fused
      for (const auto& pass : compiled.passes)
        most = std::max(most, pass.nodes);
      std::sort(compiled.passes.begin(), compiled.passes.end(),
                [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
      std::string longest;
      for (size_t i = 0; i < 3; ++i)
        longest += fmt::format("{}{} {:.0f}%", i ? ", " : "", compiled.passes[i].name,
                               100 * compiled.passes[i].seconds / seconds);
      const auto count = static_cast<double>(most);
      table.row({fused ? "fused" : "apart", fmt::format("{}", most), fmt::format("{:.3f}", seconds),
                 fmt::format("{:.2f}", seconds / count * 1e6),
                 fmt::format("{:.0f}", static_cast<double>(bytes) / count), longest});
    }
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
