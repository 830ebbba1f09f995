// Parity must be able to fail: plans that are wrong in the classic ways are told apart.
#include "examples/models/registry.h"
#include "tests/parity/cluster.h"

#include <ATen/ATen.h>

#include <cmath>
#include <set>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

std::shared_ptr<const Model> model() {
  auto made = models::make_gpt(
      R"({"layers": 2, "d_model": 16, "heads": 2, "seq": 8, "batch": 8, "dtype": "float64"})");
  if (!made.ok())
    FAIL(made.error().to_string());
  return std::make_shared<const Model>(*std::move(made));
}

/// How far training under the plans, broken by `mutate`, is from one device's.
template <class Mutate>
double distance(const char* expression, int64_t microbatches, Mutate mutate) {
  auto subject = model();
  auto run = [&](const char* name, uint32_t devices, auto change) {
    Cluster cluster(subject, devices);
    auto plans = cluster.compile(Strategy().schedule(name, microbatches));
    REQUIRE(plans.ok());
    change(*plans);
    REQUIRE(cluster.start(*std::move(plans)).ok());
    auto losses = cluster.steps(3);
    if (!losses.ok())
      FAIL(losses.error().to_string());
    return *losses;
  };
  const auto single = run("single", 1, [](PlanSet&) {});
  return difference(run(expression, 2, mutate), single);
}

} // namespace

TEST_CASE("control: untouched plans agree") {
  CHECK(distance("dp:2", 4, [](PlanSet&) {}) <= 1e-12);
  CHECK(distance("1f1b:2", 4, [](PlanSet&) {}) == 0);
}

TEST_CASE("control: what is no number agrees with nothing") {
  CHECK(difference({1.0, NAN}, {1.0, 2.0}) == INFINITY);
  CHECK(difference({NAN}, {NAN}) == INFINITY);
  const std::map<std::string, at::Tensor> good = {{"w", at::ones({2}, at::kDouble)}};
  const std::map<std::string, at::Tensor> bad = {{"w", at::full({2}, NAN, at::kDouble)}};
  CHECK(difference(good, bad) == INFINITY);
  CHECK(difference(good, good) == 0);
}

TEST_CASE("a dropped reduction is caught") {
  CHECK(distance("dp:2", 4, [](PlanSet& plans) {
          for (Plan& plan : plans.plans) {
            std::set<EventId> gone;
            std::erase_if(plan.instructions, [&](const Instruction& i) {
              if (i.op == Opcode::AllReduce)
                gone.insert(i.records);
              return i.op == Opcode::AllReduce;
            });
            for (Instruction& i : plan.instructions)
              std::erase_if(i.waits, [&](EventId event) { return gone.contains(event); });
          }
        }) > 1e-6);
}

TEST_CASE("swapped microbatches are caught") {
  // The targets of one microbatch with the tokens of the other.
  CHECK(distance("1f1b:2", 2, [](PlanSet& plans) {
          for (Instruction& i : plans.plans[1].instructions)
            if (i.op == Opcode::Input)
              i.microbatch = 1 - i.microbatch;
        }) > 1e-6);
}

// AdamW hardly sees the scale of a gradient, but its epsilon does, and parity is much finer.
TEST_CASE("an unscaled loss is caught") {
  CHECK(distance("1f1b:2", 4, [](PlanSet& plans) {
          for (Plan& plan : plans.plans)
            for (Instruction& i : plan.instructions)
              if (i.op == Opcode::Seed)
                i.scale *= 4;
        }) > 1e-9);
}

TEST_CASE("a gradient summed where it should be averaged is caught") {
  CHECK(distance("dp:2", 4, [](PlanSet& plans) {
          for (Plan& plan : plans.plans)
            for (Instruction& i : plan.instructions)
              if (i.op == Opcode::Seed)
                i.scale *= 2;
        }) > 1e-9);
}
