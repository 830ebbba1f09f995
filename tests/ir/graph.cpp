#include "ir/graph.h"
#include "tests/ir/graphs.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

TEST_CASE("a graph prints a node a line and parses back") {
  const Graph g = pipeline_graph();
  const std::string text = g.to_text();
  CHECK(text == pipeline_text(g));
  const auto parsed = Graph::parse(text, g.model, g.strategy);
  REQUIRE(parsed.ok());
  CHECK(parsed->to_text() == text);
  CHECK(parsed->fingerprint() == g.fingerprint());
  REQUIRE(parsed->regions.size() == g.regions.size());
  for (size_t r = 0; r < g.regions.size(); ++r) {
    CHECK(parsed->regions[r]->nodes() == g.regions[r]->nodes());
    CHECK(parsed->regions[r]->fingerprint() == g.regions[r]->fingerprint());
  }
}

TEST_CASE("nodes and values have names") {
  const Graph g = pipeline_graph();
  CHECK(g.name(NodeId{.op = Op::Forward, .subject = 1, .microbatch = 0, .at = GroupId(1)}) ==
        "F l1 @0 on g1");
  CHECK(g.name(NodeId{.op = Op::Commit, .at = GroupId(2)}) == "commit on g2");
  CHECK(g.name(ValueRef{.kind = ValueKind::GradientPart, .subject = 1, .part = 1}) == "d.l0[l1]");
  CHECK(g.name(ValueRef{.kind = ValueKind::Reduced, .subject = 0, .at = GroupId(0)}) ==
        "reduced.layer=0 on g0");
  CHECK(g.name(ValueRef{.subject = 99}) == "?99");
}

TEST_CASE("an activation whose name reads as another kind of value is quoted") {
  SpecBuilder b("m");
  const ValueId x = b.input("d.x");
  Graph g;
  g.model = b.loss({b.linear("committed", {}, {x})});
  CHECK(g.name(ValueRef{.subject = 0}) == "\"d.x\"");
  CHECK(g.name(ValueRef{.kind = ValueKind::Gradient, .subject = 0}) == "d.d.x");
  CHECK(g.name(ValueRef{.subject = 1}) == "\"committed\"");
}

TEST_CASE("rows are shared out to microbatches and replicas") {
  Graph g = pipeline_graph();
  CHECK(g.rows(GroupId(0)) == 8);
  CHECK(g.rows({}) == 8);
  g.groups[0] = {{0, 1, 2, 3}, true};
  CHECK(g.rows(GroupId(0)) == 2);
}

TEST_CASE("an index finds nodes and producers") {
  const Graph g = pipeline_graph();
  const GraphIndex index(g);
  CHECK(index.nodes().size() == g.node_count());
  for (const Node* node : index.nodes()) {
    CHECK(index.node(node->id) == node);
    for (const ValueRef& output : node->outputs)
      CHECK(index.producer(output) == node);
  }
  CHECK(!index.node({.op = Op::Loss, .subject = 77}));
  CHECK(!index.producer({.subject = 77}));
}

TEST_CASE("a graph's picture has a cluster a region and an edge a dependence") {
  const std::string dot = pipeline_graph().to_dot();
  CHECK(dot.starts_with("digraph piper {"));
  CHECK(dot.find("label=\"F layer=0\"") != std::string::npos);
  CHECK(dot.find("[label=\"F l0 @0 on g0\", fillcolor=lightskyblue]") != std::string::npos);
  CHECK(dot.find("[style=dashed, label=\"directive 3\"]") != std::string::npos);
}

TEST_CASE("errors in a graph's text name the line") {
  const Graph g = pipeline_graph();
  auto error = [&](const std::string& from, const std::string& to) {
    std::string text = g.to_text();
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    const auto result = Graph::parse(text, g.model, g.strategy);
    REQUIRE(!result.ok());
    CHECK(result.error().kind == ErrorKind::User);
    return fmt::format("{}: {}", result.error().where, result.error().message);
  };
  CHECK(error("group g1", "group g7") ==
        "line 3: groups are numbered from 0 in order: expected g1");
  CHECK(error("F l0", "G l0") == "line 15: there is no node \"G\"");
  CHECK(error("F l0", "F l9") == "line 15: unknown name \"l9\": expected a call");
  CHECK(error("param l0.w", "param l9.w") == "line 6: unknown name \"l9.w\": expected a parameter");
  CHECK(error("bucket layer=1", "bucket layer=0") == "line 7: a second bucket \"layer=0\"");
  CHECK(error("f32 numel", "f33 numel") == "line 5: unknown element type \"f33\"");
  CHECK(error("region", "legion") ==
        "line 9: expected \"tags\", \"group\", \"bucket\" or \"region\", found \"legion input\"");
  CHECK(
      error(g.model->fingerprint().to_string(), std::string(32, '0')) ==
      fmt::format("line 1: the graph was made for another model: chain {}", std::string(32, '0')));
  CHECK(error("by 1", "by one") == "line 15: expected a directive, found \"one\"");
  CHECK(error("(x) -> (saved", "(x -> (saved") ==
        "line 15: expected \")\", found \"-> (saved.l0, l0) by 1\"");
}

TEST_CASE("a region's fingerprint covers its name and every field of its nodes") {
  Node node;
  node.id = {.op = Op::Send, .subject = 1, .microbatch = 2, .at = GroupId(0), .peer = GroupId(1)};
  node.inputs = {{.subject = 1}};
  node.outputs = {{.subject = 2}};
  node.after = {{{.op = Op::Loss}, 1}};
  node.chunks = {{CallId(1)}, {CallId(2)}};
  const Region base("r", {node});
  std::vector<Fingerprint> seen = {base.fingerprint()};
  auto differs = [&](const char* name, auto change) {
    Node changed = node;
    change(changed);
    const Fingerprint its = Region(name, {changed}).fingerprint();
    CHECK(std::find(seen.begin(), seen.end(), its) == seen.end());
    seen.push_back(its);
  };
  CHECK(Region("r", {node}).fingerprint() == base.fingerprint());
  differs("q", [](Node&) {});
  differs("r", [](Node& n) { n.id.op = Op::Recv; });
  differs("r", [](Node& n) { n.id.kind = ValueKind::Gradient; });
  differs("r", [](Node& n) { n.id.subject = 9; });
  differs("r", [](Node& n) { n.id.part = 9; });
  differs("r", [](Node& n) { n.id.microbatch = 9; });
  differs("r", [](Node& n) { n.id.at = GroupId(9); });
  differs("r", [](Node& n) { n.id.peer = GroupId(9); });
  differs("r", [](Node& n) { n.inputs[0].kind = ValueKind::Saved; });
  differs("r", [](Node& n) { n.inputs[0].subject = 9; });
  differs("r", [](Node& n) { n.inputs[0].part = 9; });
  differs("r", [](Node& n) { n.inputs[0].microbatch = 9; });
  differs("r", [](Node& n) { n.inputs[0].at = GroupId(9); });
  differs("r", [](Node& n) { n.inputs.clear(); });
  differs("r", [](Node& n) { std::swap(n.inputs, n.outputs); });
  differs("r", [](Node& n) { n.after[0].directive = 9; });
  differs("r", [](Node& n) { n.after[0].before.subject = 9; });
  differs("r", [](Node& n) { n.chunks = {{CallId(1), CallId(2)}}; });
  differs("r", [](Node& n) { n.scale = 0.5; });
  differs("r", [](Node& n) { n.stream = "side stream"; });
  differs("r", [](Node& n) { n.directive = 9; });
}

TEST_CASE("a graph's fingerprint covers what stands beside the regions") {
  const Graph base = pipeline_graph();
  std::vector<Fingerprint> seen = {base.fingerprint()};
  auto differs = [&](auto change) {
    Graph changed = base;
    change(changed);
    const Fingerprint its = changed.fingerprint();
    CHECK(std::find(seen.begin(), seen.end(), its) == seen.end());
    seen.push_back(its);
  };
  CHECK(pipeline_graph().fingerprint() == base.fingerprint());
  differs([](Graph& g) { g.model = chain_spec(3); });
  differs([](Graph& g) { g.strategy = std::make_shared<Strategy>(); });
  differs([](Graph& g) { g.microbatches = 4; });
  differs([](Graph& g) { g.microbatch_tag = "M"; });
  differs([](Graph& g) { g.tags[0].push_back({"stage", 1}); });
  differs([](Graph& g) { g.tags[0][0].index = 5; });
  differs([](Graph& g) { g.groups[0].devices = {5}; });
  differs([](Graph& g) { g.groups[0].replicated = true; });
  differs([](Graph& g) { g.buckets[0].name = "b"; });
  differs([](Graph& g) { g.buckets[0].group = GroupId(1); });
  differs([](Graph& g) { g.buckets[0].dtype = DType::F64; });
  differs([](Graph& g) { g.buckets[0].params = {ParamId(1)}; });
  differs([](Graph& g) { g.buckets[0].offsets = {16}; });
  differs([](Graph& g) { g.buckets[0].numel = 160; });
  differs([](Graph& g) { g.buckets[0].shard_optimizer = true; });
  differs([](Graph& g) { g.buckets[0].shards = 2; });
  differs([](Graph& g) { g.regions.pop_back(); });
  differs([](Graph& g) { std::swap(g.regions[0], g.regions[1]); });
}
