#include "ir/verify.h"
#include "tests/ir/graphs.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

/// The error after `change` was applied to the nodes of a good graph.
template <class Change> Error broken_node(const std::string& node_name, Change change) {
  Graph g = pipeline_graph();
  bool found = false;
  for (RegionPtr& region : g.regions) {
    std::vector<Node> nodes = region->nodes();
    for (Node& node : nodes)
      if (g.name(node.id) == node_name) {
        found = true;
        change(node);
      }
    region = std::make_shared<Region>(region->name(), std::move(nodes));
  }
  REQUIRE(found);
  const auto result = verify(g);
  REQUIRE(!result.ok());
  return result.error();
}

template <class Change> std::string broken_table(Change change) {
  Graph g = pipeline_graph();
  change(g);
  const auto result = verify(g);
  REQUIRE(!result.ok());
  CHECK(result.error().kind == ErrorKind::Internal);
  CHECK(result.error().where == "graph of chain");
  return result.error().message;
}

NodeId id_of(const Graph& g, const std::string& name) {
  for (const RegionPtr& region : g.regions)
    for (const Node& node : region->nodes())
      if (g.name(node.id) == name)
        return node.id;
  throw std::logic_error("no such node");
}

} // namespace

TEST_CASE("a graph that keeps the rules is accepted") {
  const auto result = verify(pipeline_graph());
  INFO((result.ok() ? "" : result.error().to_string()));
  CHECK(result.ok());
}

TEST_CASE("each broken rule of the tables is told") {
  CHECK(broken_table([](Graph& g) { g.microbatches = 0; }) == "there are 0 microbatches");
  CHECK(broken_table([](Graph& g) { g.tags.pop_back(); }) == "2 calls have tags, the model has 3");
  CHECK(broken_table([](Graph& g) { g.tags[0][0].index = 5; }) ==
        "the tags of call l0 don't begin with its annotations");
  CHECK(broken_table([](Graph& g) { g.groups[1].devices.clear(); }) == "group g1 has no devices");
  CHECK(broken_table([](Graph& g) {
          g.groups[2].devices = {0, 1, 0};
        }) == "group g2 has device 0 twice");
  CHECK(broken_table([](Graph& g) { g.buckets[1].name = "layer=0"; }) ==
        "two buckets are named \"layer=0\"");
  CHECK(broken_table([](Graph& g) { g.buckets[1].group = GroupId(7); }) ==
        "bucket layer=1 is on g7, which does not exist");
  CHECK(broken_table([](Graph& g) { g.buckets[1].params = {ParamId(0)}; }) ==
        "parameter l0.w is in two buckets");
  CHECK(broken_table([](Graph& g) { g.buckets[1].params = {ParamId(9)}; }) ==
        "bucket layer=1 holds parameter 9, which does not exist");
  CHECK(broken_table([](Graph& g) { g.buckets[1].offsets.clear(); }) ==
        "bucket layer=1 has 1 parameters and 0 offsets");
  CHECK(broken_table([](Graph& g) { g.buckets[1].dtype = DType::F64; }) ==
        "parameter l1.w is f32, its bucket layer=1 is f64");
  CHECK(broken_table([](Graph& g) { g.buckets[1].offsets = {8}; }) ==
        "parameter l1.w is at offset 8 of bucket layer=1: it overlaps the one before or is not "
        "aligned to 16");
  CHECK(broken_table([](Graph& g) { g.buckets[1].numel = 24; }) ==
        "bucket layer=1 has 24 elements: its parameters need 16, padded to a multiple of 16");
  CHECK(broken_table([](Graph& g) { g.regions.push_back(g.regions[0]); }) ==
        "two regions are named \"input\"");
}

TEST_CASE("each broken rule of a node is told") {
  auto message = [](const std::string& name, auto change) {
    const Error e = broken_node(name, change);
    CHECK(e.kind == ErrorKind::Internal);
    return e.where + ": " + e.message;
  };
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.id.microbatch = 1; }) ==
        "F l0 @1 on g0, directive 1 (place): two nodes have this id");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.outputs[1].microbatch = 1; }) ==
        "F l0 @1 on g0, directive 1 (place): l0 @1 on g0 is made twice: F l0 @0 on g0 makes it "
        "too");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.inputs[0].at = GroupId(1); }) ==
        "F l0 @0 on g0, directive 1 (place): nothing makes x @0 on g1, which it reads");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.inputs[0].at = GroupId(7); }) ==
        "F l0 @0 on g0, directive 1 (place): group g7 of 3");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.inputs[0].microbatch = 2; }) ==
        "F l0 @0 on g0, directive 1 (place): microbatch 2 of 2");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.inputs[0].subject = 99; }) ==
        "F l0 @0 on g0, directive 1 (place): ?99 @0 on g0 names what does not exist");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.outputs[0].kind = ValueKind::GradientPart; }) ==
        "F l0 @0 on g0, directive 1 (place): d.x[] @0 on g0 must name a part exactly if it is a "
        "part of a gradient");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.inputs[0].part = 2; }) ==
        "F l0 @0 on g0, directive 1 (place): x#2 @0 on g0 is in no memory");
  CHECK(message("F l0 @0 on g0", [](Node& n) { n.directive = 9; }).find("directive 9 of 4") !=
        std::string::npos);
  CHECK(message("F l0 @0 on g0", [](Node& n) {
          n.chunks = {{}};
        }).ends_with(": a chunk has no calls"));
  CHECK(message("F l0 @0 on g0", [](Node& n) {
          n.chunks = {{CallId(1)}};
        }).ends_with(": its first chunk does not start with the call that names it"));
  CHECK(message("F l0 @0 on g0", [](Node& n) {
          n.chunks = {{CallId(0)}, {CallId(0)}};
        }).ends_with(": the calls of its chunks are not in forward order"));
  CHECK(message("B l1 @0 on g1", [](Node& n) {
          n.chunks = {{CallId(1), CallId(2)}};
        }).ends_with(": its chunks differ from those of the forward of its microbatch"));
  CHECK(message("loss loss @0 on g1", [](Node& n) { n.chunks = {{CallId(1)}}; }) ==
        "loss loss @0 on g1: only what runs calls has chunks");
  CHECK(message("loss loss @0 on g1", [](Node& n) { n.id.peer = GroupId(0); }) ==
        "loss loss @0 on g1 to g0: only transfers have a peer");
  CHECK(message("send l0 @0 on g0 to g1", [](Node& n) { n.id.peer = GroupId(2); }) ==
        "send l0 @0 on g0 to g2: a transfer goes between equal ranks, but the groups have 1 and 2 "
        "devices");
  CHECK(message("send l0 @0 on g0 to g1", [](Node& n) { n.id.peer = GroupId(0); }) ==
        "send l0 @0 on g0 to g0: a transfer goes between two groups");
  CHECK(message("recv l0 @0 on g1 from g0", [](Node& n) {
          n.id.kind = ValueKind::Gradient;
          n.after.clear();
        }) == "send l0 @0 on g0 to g1: nothing receives what it sends");
  CHECK(message("loss loss @0 on g1", [](Node& n) {
          n.after = {{{.op = Op::Commit}, -1}};
        }) == "loss loss @0 on g1: it comes after commit, which is not in the graph");
}

TEST_CASE("a cycle that directives close is the user's, and is told by name") {
  const NodeId later = id_of(pipeline_graph(), "F l0 @1 on g0");
  const Error e = broken_node("F l0 @0 on g0", [&](Node& n) { n.after = {{later, 0}}; });
  CHECK(e.kind == ErrorKind::User);
  CHECK(e.where == "directive 0 (split); directive 3 (order)");
  CHECK(e.message == "the order asked for is a cycle: F l0 @0 on g0 -> (directive 3) F l0 @1 on g0 "
                     "-> (directive 0) F l0 @0 on g0");
  CHECK(e.hint == "directives 0 and 3 ask for opposite orders: change one of them");
}

TEST_CASE("a directive against the flow of values is the user's, and the shortest cycle is told") {
  const NodeId loss = id_of(pipeline_graph(), "loss loss @1 on g1");
  const Error e = broken_node("F l1 @1 on g1", [&](Node& n) { n.after = {{loss, 3}}; });
  CHECK(e.kind == ErrorKind::User);
  CHECK(e.message == "the order asked for is a cycle: F l1 @1 on g1 -> loss loss @1 on g1 -> "
                     "(directive 3) F l1 @1 on g1");
  CHECK(e.hint == "directive 3 asks for an order that the flow of values forbids");
}

TEST_CASE("a cycle without a directive is a defect") {
  const NodeId loss = id_of(pipeline_graph(), "loss loss @1 on g1");
  const Error e = broken_node("F l1 @1 on g1", [&](Node& n) { n.after = {{loss, -1}}; });
  CHECK(e.kind == ErrorKind::Internal);
  CHECK(e.message == "the graph has a cycle: F l1 @1 on g1 -> loss loss @1 on g1 -> F l1 @1 on g1");
}

TEST_CASE("what a send waits for may not come after its receive") {
  const NodeId use = id_of(pipeline_graph(), "F l1 @0 on g1");
  const Error e = broken_node("F l0 @0 on g0", [&](Node& n) { n.after = {{use, -1}}; });
  CHECK(e.message.find("send l0 @0 on g0 to g1 -> recv l0 @0 on g1 from g0") != std::string::npos);
}
