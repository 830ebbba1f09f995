// What the compiler reports of the memory that its graphs and plans take.
#include "ir/footprint.h"
#include "tests/compiler/corpus.h"
#include "tests/compiler/models.h"

#include <malloc.h>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

/// That the program holds; 0 under a sanitizer, which has an allocator of its own.
size_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// What a copy adds to the heap, for each byte that it is said to take.
template <class Made, class Make> double heap_per_byte(Make make) {
  const size_t before = heap_bytes();
  const auto made = std::make_unique<const Made>(make());
  return static_cast<double>(heap_bytes() - before) / static_cast<double>(bytes_of(*made));
}

} // namespace

TEST_CASE("each pass is reported with the bytes that its graph takes") {
  const auto model = chain(4, 8);
  const Strategy strategy = Strategy().schedule("1f1b:2", 4);
  const auto measured = compile_ok(model, strategy, {.measure_bytes = true});
  for (const compiler::PassStat& pass : measured.passes) {
    INFO(pass.name);
    CHECK(pass.bytes > pass.nodes * sizeof(Node));
  }
  CHECK(measured.passes.back().bytes == bytes_of(measured.graph) + bytes_of(measured.plans));
  for (const compiler::PassStat& pass : compile_ok(model, strategy).passes)
    CHECK(pass.bytes == 0);
}

TEST_CASE("the bytes reported are those that the heap holds, but for what the allocator adds") {
  if (heap_bytes() == 0)
    return;
  const auto compiled = compile_ok(chain(40, 16), Strategy().schedule("dp:2x1f1b:4", 16));
  const std::string graph = compiled.graph.to_text(), plans = compiled.plans.to_text();
  const double of_graph = heap_per_byte<Graph>([&] {
    return Graph::parse(graph, compiled.graph.model, compiled.graph.strategy).value_or_throw();
  });
  CHECK(of_graph >= 1);
  CHECK(of_graph < 1.5);
  const double of_plans =
      heap_per_byte<PlanSet>([&] { return PlanSet::parse(plans).value_or_throw(); });
  CHECK(of_plans >= 1);
  CHECK(of_plans < 1.5);
}
