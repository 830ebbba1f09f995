// Cost models and clusters as text, and what collectives cost.
#include "compiler/cost/collectives.h"
#include "compiler/cost/cost_model.h"
#include "tests/compiler/models.h"

#include <numeric>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::compiler;
using namespace piper::ir;
using namespace piper::test;

namespace {

std::string refusal(const auto& result) {
  REQUIRE_FALSE(result.ok());
  return result.error().to_string();
}

std::vector<DeviceIndex> first_devices(uint32_t n) {
  std::vector<DeviceIndex> devices(n);
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

Cluster nodes_of(uint32_t devices) {
  Cluster cluster;
  cluster.levels = {{.name = "node", .devices = devices, .latency = 1, .bandwidth = 100},
                    {.name = "cluster", .latency = 10, .bandwidth = 10}};
  return cluster;
}

} // namespace

TEST_CASE("a cost model parses back") {
  const auto model = load_model("skip");
  CostModel costs = declared_costs(*model);
  costs.source = "by hand \"quoted\"";
  costs.instruction = 0.1 + 0.2;
  costs.forward_chunk = 3e-6;
  costs.backward_chunk = 7e-6;
  costs.iteration = 1e-5;
  costs.moments = 1;
  costs.calls[0].forward = {1e-7, 3.25e-9};
  costs.calls[0].backward_weight = {12345, 67};
  const std::string text = costs.to_json(*model);
  const auto parsed = CostModel::parse(text, *model);
  if (!parsed.ok())
    FAIL(parsed.error().to_string());
  CHECK(*parsed == costs);
  CHECK(parsed->to_json(*model) == text);
  CHECK(costs.seconds(CallId(0), 2) ==
        Approx(1e-7 + 2 * 3.25e-9 + 2 * costs.calls[0].backward.per_row));
}

TEST_CASE("a fit is the line through the samples, and never below nothing") {
  CHECK(fit({{2, 7.0}, {4, 11.0}, {8, 19.0}}).per_row == Approx(2));
  CHECK(fit({{2, 7.0}, {4, 11.0}, {8, 19.0}}).fixed == Approx(3));
  CHECK(fit({{4, 8.0}}) == Affine{0, 2});
  CHECK(fit({{2, 2.0}, {4, 8.0}}).fixed == 0); // the line would begin below 0
  CHECK(fit({{2, 2.0}, {4, 8.0}}).per_row == Approx(36.0 / 20));
  CHECK(fit({{2, 5.0}, {4, 3.0}}) == Affine{4, 0});
  CHECK(fit({}) == Affine{});
}

TEST_CASE("declared costs follow the declared FLOPs") {
  const auto model = chain(2, 4);
  const CostModel costs = declared_costs(*model, {.flops = 64});
  CHECK(costs.calls[0].forward.at(3) == 6);
  CHECK(costs.calls[0].backward.at(3) == 12);
  CHECK(costs.calls[0].backward_input.at(3) + costs.calls[0].backward_weight.at(3) == 12);
}

TEST_CASE("a wrong cost file is refused with line, column and key") {
  const auto model = load_model("chain2"); // calls first, second, loss
  const auto refused = [&](const std::string& text) {
    return refusal(CostModel::parse(text, *model, "costs.json"));
  };
  CHECK(refused("{\"calls\": {\n  \"first\" {}}}").find("costs.json:2:11: malformed JSON") == 0);
  CHECK(refused("{\n \"speed\": 3}").find("costs.json:2:2: \"speed\" is no key that is known") ==
        0);
  CHECK(refused("{\"calls\": {}}").find("\"calls\" lacks the call \"first\"") != std::string::npos);
  CHECK(refused("{}").find("has no \"calls\"") != std::string::npos);
  CHECK(refused("{\"calls\": {\n\n    \"third\": {}}}")
            .find("costs.json:3:5: \"calls.third\" is no call of the model") == 0);
  CHECK(refused("{\"calls\": {\"first\": {\n \"forward\": {\"per_row\": -1}}}}")
            .find("costs.json:2:14: \"calls.first.forward.per_row\" must be a number of 0 or "
                  "more, found -1") == 0);
  CHECK(refused("{\"calls\": {\"first\": {\"forward\": 3}}}")
            .find("\"calls.first.forward\" must be an object, found 3") != std::string::npos);
  CHECK(refused("{\"calls\": {\"first\": {\"forwart\": {}}}}").find("did you mean \"forward\"?") !=
        std::string::npos);
  CHECK(refused("{\"update\": 1,\n \"update\": 2}")
            .find("costs.json:2:2: the key \"update\" stands twice") == 0);
}

TEST_CASE("a cluster parses back, also as a part of a cost file") {
  Cluster cluster = nodes_of(4);
  cluster.levels[0].cores = 3;
  cluster.levels[0].uplink = 12.5;
  cluster.levels[0].hands_over = true;
  cluster.speed = 2;
  cluster.speeds = {{3, 0.5}};
  cluster.memory = 80'000'000'000;
  cluster.message = 1e-6;
  cluster.collectives = Algorithm::Hierarchical;
  const auto parsed = Cluster::parse(cluster.to_json());
  REQUIRE(parsed.ok());
  CHECK(**parsed == cluster);
  const auto within = Cluster::parse("{\"calls\": {}, \"cluster\": " + cluster.to_json() + "}");
  REQUIRE(within.ok());
  CHECK(**within == cluster);
  const auto none = Cluster::parse("{\"calls\": {}}");
  REQUIRE(none.ok());
  CHECK_FALSE(none->has_value());
}

TEST_CASE("a wrong cluster is refused with line, column and key") {
  const auto refused = [](const std::string& text) {
    return refusal(Cluster::parse(text, "cluster.json"));
  };
  CHECK(refused("{\"levels\": []}").find("\"levels\" has no level that holds all devices") !=
        std::string::npos);
  CHECK(refused("{\"levels\": [{\"name\": \"a\", \"devices\": 4},\n {\"name\": \"b\", \"devices\": "
                "6}, {\"name\": \"c\"}]}")
            .find("cluster.json:2:2: \"levels.1\" holds 6 devices, no multiple of the 4") == 0);
  CHECK(refused("{\"levels\": [{\"name\": \"a\"}, {\"name\": \"b\"}]}")
            .find("\"levels.1\" stands outside of a level that holds all devices") !=
        std::string::npos);
  CHECK(refused("{\"speed\": 0, \"levels\": [{\"name\": \"a\"}]}")
            .find("\"speed\" must be above 0") != std::string::npos);
  CHECK(refused("{\"speeds\": {\"two\": 1}, \"levels\": []}").find("\"speeds.two\" is no device") !=
        std::string::npos);
  CHECK(refused("{\"collectives\": \"rings\", \"levels\": []}")
            .find("\"collectives\" is no algorithm: \"rings\"") != std::string::npos);
}

TEST_CASE("levels between devices") {
  Cluster cluster;
  cluster.levels = {{.name = "process", .devices = 2}, {.name = "node", .devices = 4}, {"all"}};
  CHECK(cluster.level_between(0, 1) == 0);
  CHECK(cluster.level_between(1, 2) == 1);
  CHECK(cluster.level_between(3, 4) == 2);
  CHECK(cluster.unit(0, 5) == 2);
  CHECK(cluster.unit(2, 5) == 0);
}

TEST_CASE("all algorithms send what the formulas say") {
  const Cluster cluster = nodes_of(4);
  for (uint32_t n : {2, 3, 4, 8, 12, 16})
    for (Algorithm algorithm :
         {Algorithm::Direct, Algorithm::Ring, Algorithm::Halving, Algorithm::Hierarchical}) {
      CAPTURE(n, to_string(algorithm));
      const auto group = first_devices(n);
      const double half = (n - 1.0) / n;
      for (const auto& [kind, bytes] : {std::pair(CollectiveKind::AllReduce, 2 * half),
                                        std::pair(CollectiveKind::ReduceScatter, half),
                                        std::pair(CollectiveKind::AllGather, half)}) {
        const Collective collective = plan_collective(cluster, kind, algorithm, group);
        double added = 0;
        for (const Phase& phase : collective.phases)
          added += phase.added;
        CHECK(added == Approx(kind == CollectiveKind::AllGather ? 0 : half));
        for (size_t rank = 0; rank < n; ++rank)
          CHECK(collective.sent(rank) == Approx(bytes));
        // What is sent at a level is received there.
        for (const Phase& phase : collective.phases) {
          std::vector<double> balance(cluster.levels.size());
          for (const auto& uses : phase.members)
            for (const PortUse& use : uses)
              balance[use.level] += use.out - use.in;
          for (double rest : balance)
            CHECK(rest == Approx(0).margin(1e-12));
        }
      }
    }
}

TEST_CASE("collectives on an idle cluster, by hand") {
  Cluster cluster = nodes_of(4);
  const auto seconds = [&](Algorithm algorithm, uint32_t n, double bytes,
                           CollectiveKind kind = CollectiveKind::AllReduce) {
    return plan_collective(cluster, kind, algorithm, first_devices(n), bytes)
        .seconds(cluster, bytes, 0);
  };
  // Within a node of 4: 400 bytes, 100 to each of the others.
  CHECK(seconds(Algorithm::Direct, 4, 400) == Approx(2 * (1 + 3)));
  CHECK(seconds(Algorithm::Ring, 4, 400) == Approx(2 * (3 * 1 + 3)));
  CHECK(seconds(Algorithm::Halving, 4, 400) == Approx(2 * (2 * 1 + 3)));
  CHECK(seconds(Algorithm::Ring, 4, 400, CollectiveKind::AllGather) == Approx(3 + 3));
  // Two nodes of 4: the ring crosses them with all it has; direct with half of it; hierarchical
  // with a part of a fourth.
  CHECK(seconds(Algorithm::Ring, 8, 800) == Approx(2 * (7 * 10 + 70)));
  CHECK(seconds(Algorithm::Direct, 8, 800) == Approx(2 * (10 + 40)));
  CHECK(seconds(Algorithm::Hierarchical, 8, 800) == Approx(2 * (3 + 6 + 10 + 10)));
  CHECK(seconds(Algorithm::Auto, 8, 800) == Approx(2 * (3 + 6 + 10 + 10)));
  CHECK(seconds(Algorithm::Auto, 8, 8) == seconds(Algorithm::Direct, 8, 8));
  cluster.message = 5;
  CHECK(seconds(Algorithm::Direct, 4, 0) == Approx(2 * (1 + 3 * 5)));
  CHECK(seconds(Algorithm::Auto, 4, 0) == seconds(Algorithm::Halving, 4, 0));
}
