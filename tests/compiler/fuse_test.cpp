// What fusing does to gradients that have several sources.
#include "tests/compiler/models.h"

#include <algorithm>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

int count(const Graph& graph, Op op) {
  int n = 0;
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      n += node.id.op == op;
  return n;
}

const Node& find(const Graph& graph, Op op, const std::string& subject) {
  for (const RegionPtr& region : graph.regions)
    for (const Node& node : region->nodes())
      if (node.id.op == op && (op == Op::Add ? graph.model->values[node.id.subject].name
                                             : graph.model->calls[node.id.subject].name) == subject)
        return node;
  FAIL("no such node: " << to_string(op) << " " << subject);
  throw 0;
}

Graph fused(const Strategy& strategy) {
  compiler::CompileOptions options;
  options.stop_after = "fuse";
  return compile_ok(load_model("skip"), strategy, options).graph;
}

} // namespace

// In the skip model `a` is read by b, c and d.
TEST_CASE("parts from inside a fused run are summed inside") {
  const Graph graph = fused(Strategy().place({}, {0}).fuse({}));
  CHECK(count(graph, Op::Add) == 0);
  CHECK(count(graph, Op::Forward) == 1);
  CHECK(count(graph, Op::Backward) == 1);
}

TEST_CASE("unfused, every part is added last reader first") {
  const Graph graph = fused(Strategy().place({}, {0}));
  const Node& add = find(graph, Op::Add, "a");
  REQUIRE(add.inputs.size() == 3);
  CHECK(graph.model->calls[add.inputs[0].part].name == "d");
  CHECK(graph.model->calls[add.inputs[1].part].name == "c");
  CHECK(graph.model->calls[add.inputs[2].part].name == "b");
}

TEST_CASE("a fused run of readers gives one part, which alone needs no Add") {
  const Graph graph = fused(Strategy()
                                .place({{"layer", {std::vector<int64_t>{0, 1}}}}, {0})
                                .place({{"layer", {std::vector<int64_t>{2, 3}}}}, {1})
                                .fuse({{"layer", {std::vector<int64_t>{0, 1}}}})
                                .fuse({{"layer", {std::vector<int64_t>{2, 3}}}}));
  CHECK(count(graph, Op::Add) == 0);
  const Node& late = find(graph, Op::Backward, "c");
  const Node& early = find(graph, Op::Backward, "a");
  auto gradient_of_a = [&](const ValueRef& ref) {
    return ref.kind == ValueKind::Gradient && graph.model->values[ref.subject].name == "a";
  };
  CHECK(std::count_if(late.outputs.begin(), late.outputs.end(), gradient_of_a) == 1);
  CHECK(std::count_if(early.inputs.begin(), early.inputs.end(), gradient_of_a) == 1);
}

TEST_CASE("parts from two other runs are added before they enter") {
  const Graph graph = fused(
      Strategy().place({}, {0}).fuse({{"PASS", "B"}, {"layer", {std::vector<int64_t>{0, 1}}}}));
  const Node& add = find(graph, Op::Add, "a");
  REQUIRE(add.inputs.size() == 2); // d, then c; b is inside
  CHECK(graph.model->calls[add.inputs[0].part].name == "d");
  CHECK(graph.model->calls[add.inputs[1].part].name == "c");
}

TEST_CASE("forward and backward agree on chunks, cut where either is") {
  const Graph graph = fused(Strategy()
                                .place({}, {0})
                                .fuse({{"PASS", "F"}})
                                .fuse({{"PASS", "B"}, {"layer", {std::vector<int64_t>{0, 1}}}})
                                .fuse({{"PASS", "B"}, {"layer", {std::vector<int64_t>{2, 3}}}}));
  const Node& forward = find(graph, Op::Forward, "a");
  REQUIRE(forward.chunks.size() == 2);
  CHECK(forward.chunks[0] == find(graph, Op::Backward, "a").chunks.at(0));
  CHECK(forward.chunks[1] == find(graph, Op::Backward, "c").chunks.at(0));
}

TEST_CASE("calls that are neighbours only on their device stay apart") {
  // a and c share a device, but b on the other one lies between them.
  const Graph graph = fused(Strategy()
                                .place({{"layer", {std::vector<int64_t>{0, 2}}}}, {0})
                                .place({{"layer", {std::vector<int64_t>{1, 3}}}}, {1})
                                .fuse({}));
  CHECK(count(graph, Op::Forward) == 4);
}

TEST_CASE("segments that are recomputed or offloaded are not fused with others") {
  const auto all = [] { return Strategy().place({}, {0}).fuse({}); };
  const Graph plain = fused(all());
  CHECK(count(plain, Op::Forward) == 1);
  CHECK(count(plain, Op::Backward) == 1);
  const Graph again = fused(all().recompute({{"layer", 1}}));
  CHECK(count(again, Op::Forward) == 1);
  CHECK(count(again, Op::Backward) == 3); // what is before, itself, and after
  CHECK(find(again, Op::Forward, "a").chunks.size() == 3);
  const Graph away = fused(all().offload({.filter = {{"layer", 1}}}));
  CHECK(count(away, Op::Forward) == 3);
  CHECK(count(away, Op::Backward) == 3);
}
