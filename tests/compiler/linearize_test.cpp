// The order of the whole graph, and random strategies through the whole compiler.
#include "compiler/linearize.h"
#include "tests/compiler/models.h"

#include <map>
#include <random>
#include <set>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

void check_order(const Graph& graph) {
  const GraphIndex index(graph);
  const std::vector<const Node*> order = compiler::linearize(graph, index);
  REQUIRE(order.size() == graph.node_count());
  std::map<const Node*, size_t> at;
  for (size_t i = 0; i < order.size(); ++i)
    at[order[i]] = i;
  bool sorted = true, paired = true;
  for (const Node* node : order) {
    for (const ValueRef& ref : node->inputs)
      sorted &= !index.producer(ref) || at[index.producer(ref)] < at[node];
    for (const TemporalEdge& edge : node->after)
      sorted &= !index.node(edge.before) || at[index.node(edge.before)] < at[node];
    if (node->id.op == Op::Recv)
      paired &= order[at[node] - 1]->id.op == Op::Send;
  }
  CHECK(sorted);
  CHECK(paired);
}

} // namespace

TEST_CASE("without an order a backward goes before the next forward") {
  const compiler::Compiled compiled = compile_ok(chain(2, 8), Strategy().schedule("single", 3 + 1));
  std::string passes;
  for (const Instruction& i : compiled.plans.plans[0].instructions)
    passes += i.op == Opcode::Forward ? "F" : i.op == Opcode::Backward ? "B" : "";
  CHECK(passes == "FBFBFBFB");
}

TEST_CASE("compiling twice gives the same bytes") {
  auto model = chain(6, 8);
  const Strategy strategy = Strategy().schedule("dp:2x1f1b:2", 8);
  CHECK(compile_ok(model, strategy).plans.to_text(model.get()) ==
        compile_ok(model, strategy).plans.to_text(model.get()));
}

TEST_CASE("random strategies compile and verify, or are refused with a reason") {
  std::mt19937 random(20);
  auto pick = [&](int n) { return static_cast<int>(random() % n); };
  int compiled_count = 0;
  for (int round = 0; round < 200; ++round) {
    auto model = pick(3) == 0 ? load_model("skip") : chain(2 + pick(6), 24);
    const int layers = static_cast<int>(model->segments().back()) + 1;
    const int replicas = 1 + pick(3), stages = 1 + pick(3), m = 1 + pick(4);
    Strategy strategy;
    if (model->batch % (m * replicas) == 0)
      strategy.split({}, m);
    for (int layer = 0; layer < layers; ++layer) {
      const int stage = pick(2) ? layer * stages / layers : pick(stages);
      std::vector<DeviceIndex> devices;
      for (int r = 0; r < replicas; ++r)
        devices.push_back(stage * replicas + r);
      if (replicas == 1)
        strategy.place({{"layer", layer}}, devices);
      else
        strategy.replicate(Replicate{.filter = {{"layer", layer}},
                                     .devices = devices,
                                     .shard_optimizer = pick(2) == 0,
                                     .bucket_mb = pick(2) ? 0.001 : 0});
    }
    for (int f = pick(4); f > 0; --f)
      strategy.fuse(pick(2) ? Filter{{"layer", pick(layers)}}
                            : Filter{{"PASS", pick(2) ? "F" : "B"}});
    if (pick(2) && m > 1)
      strategy.order({{{{"PASS", "F"}, {"MB", 0}}}, {{{"PASS", "F"}, {"MB", m - 1}}}});
    INFO(strategy.to_json());
    auto compiled = compiler::compile(model, strategy, {.verify_passes = true});
    if (!compiled.ok()) {
      INFO(compiled.error().to_string());
      CHECK(compiled.error().kind == ErrorKind::User);
      CHECK_FALSE(compiled.error().hint.empty());
      continue;
    }
    ++compiled_count;
    check_order(compiled->graph);
    auto parsed = PlanSet::parse(compiled->plans.to_text());
    REQUIRE(parsed.ok());
    CHECK(*parsed == compiled->plans);
  }
  CHECK(compiled_count > 100);
}
