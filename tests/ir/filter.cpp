#include "ir/graph.h"
#include "tests/ir/generators.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

Graph graph_of_chain() {
  SpecBuilder b("m");
  ValueId x = b.input("x");
  x = b.linear("a", {{"layer", 0}}, {x});
  x = b.linear("b", {{"layer", 1}, {"half", 0}}, {x});
  x = b.linear("3", {{"layer", 1}}, {x});
  Graph g;
  g.model = b.loss({x});
  g.microbatches = 4;
  g.microbatch_tag = "MB";
  for (const ModelCall& call : g.model->calls)
    g.tags.push_back(call.annotations);
  g.tags[1].push_back({"layer", 7}); // by `tag`; overrides
  g.buckets = {{.name = "a", .params = {ParamId(0)}},
               {.name = "b+3", .params = {ParamId(1), ParamId(2)}}};
  return g;
}

Node compute(Op op, std::vector<CallId> calls, int32_t microbatch = 0) {
  Node node;
  node.id = {.op = op, .subject = calls.front().value, .microbatch = microbatch};
  node.chunks = {std::move(calls)};
  return node;
}
Node other(Op op, uint32_t subject, int32_t microbatch = kNoMicrobatch) {
  Node node;
  node.id = {.op = op, .subject = subject, .microbatch = microbatch};
  return node;
}
Filter absent(const std::string& tag) {
  Filter::Term term(tag, 0);
  term.match = {TagMatch::Kind::Absent, {}};
  return Filter(std::vector<Filter::Term>{term});
}

} // namespace

TEST_CASE("a filter is a sorted conjunction without doubles") {
  Filter f{{"layer", 2}, {"MB", "*"}, {"layer", "3"}};
  CHECK(f.to_json() == "{\"MB\": \"*\", \"layer\": 3}");
  CHECK(Filter{}.empty());
  CHECK(Filter{{"x", "03"}} != Filter{{"x", 3}});
  CHECK(Filter{{"x", std::vector<std::string>{"1", "b"}}}.to_json() == "{\"x\": [1, \"b\"]}");
  CHECK(Filter{{"x", std::vector<std::string>{"1", "*"}}} == Filter{{"x", "*"}});
}

TEST_CASE("compute nodes match by annotation, pass, microbatch and name") {
  const Graph g = graph_of_chain();
  const Node f0 = compute(Op::Forward, {CallId(0)}, 2), b0 = compute(Op::Backward, {CallId(0)}, 2);
  CHECK(matches({}, g, f0));
  CHECK(matches({{"PASS", "F"}}, g, f0));
  CHECK(!matches({{"PASS", "B"}}, g, f0));
  CHECK(matches({{"PASS", "B"}, {"layer", 0}, {"MB", 2}, {"call", "a"}}, g, b0));
  CHECK(!matches({{"MB", 1}}, g, b0));
  CHECK(matches({{"MB", std::vector<int64_t>{1, 2}}}, g, b0));
  CHECK(matches({{"layer", "*"}}, g, b0));
  CHECK(!matches({{"half", "*"}}, g, b0));
  CHECK(matches(absent("half"), g, b0));
  CHECK(!matches(absent("layer"), g, b0));
  CHECK(!matches({{"layer", "zero"}}, g, b0));
}

TEST_CASE("a tag of a directive overrides an annotation") {
  const Graph g = graph_of_chain();
  CHECK(matches({{"layer", 7}}, g, compute(Op::Forward, {CallId(1)})));
  CHECK(!matches({{"layer", 1}}, g, compute(Op::Forward, {CallId(1)})));
}

TEST_CASE("a call whose name is a number is found by the number") {
  const Graph g = graph_of_chain();
  CHECK(matches({{"call", "3"}}, g, compute(Op::Forward, {CallId(2)})));
  CHECK(!matches({{"call", "3"}}, g, compute(Op::Forward, {CallId(0)})));
}

TEST_CASE("a fused node matches if all of its calls do") {
  const Graph g = graph_of_chain();
  const Node fused = compute(Op::Forward, {CallId(0), CallId(1)});
  CHECK(matches({{"layer", std::vector<int64_t>{0, 7}}}, g, fused));
  CHECK(!matches({{"layer", 0}}, g, fused));
}

TEST_CASE("nodes of buckets have the tags that all users of the bucket share") {
  const Graph g = graph_of_chain();
  const Node reduce = other(Op::AllReduce, 0), update = other(Op::Update, 0);
  CHECK(matches({{"PASS", "REDUCE"}}, g, reduce));
  CHECK(matches({{"PASS", "REDUCE"}, {"layer", 0}, {"call", "a"}}, g, reduce));
  CHECK(!matches({{"layer", 1}}, g, reduce));
  CHECK(!matches({{"PASS", "REDUCE"}}, g, update));
  CHECK(matches({{"layer", 0}}, g, update));
  const Node shared = other(Op::ReduceScatter, 1); // layer 7 and layer 1
  CHECK(matches({{"PASS", "REDUCE"}}, g, shared));
  CHECK(!matches({{"layer", "*"}}, g, shared));
  CHECK(matches(absent("layer"), g, shared));
  CHECK(!matches({{"MB", "*"}}, g, shared));
}

TEST_CASE("inputs, seeds, sums and losses follow their calls and match nothing") {
  const Graph g = graph_of_chain();
  for (Op op : {Op::Input, Op::Seed, Op::Add, Op::Loss})
    CHECK(!matches({}, g, other(op, 0, 0)));
  CHECK(matches({{"MB", 1}}, g, other(Op::Send, 0, 1)));
  CHECK(!matches({{"layer", "*"}}, g, other(Op::Send, 0, 1)));
  CHECK(!matches({{"PASS", "F"}}, g, other(Op::Recv, 0, 1)));
  CHECK(matches({}, g, other(Op::Commit, 0)));
}

TEST_CASE("matches_call ignores the pass and the microbatch") {
  const Graph g = graph_of_chain();
  CHECK(matches_call({{"PASS", "B"}, {"MB", 3}, {"layer", 0}}, g, CallId(0)));
  CHECK(!matches_call({{"PASS", "B"}, {"layer", 0}}, g, CallId(1)));
  CHECK(matches_call({{"call", "b"}}, g, CallId(1)));
}
