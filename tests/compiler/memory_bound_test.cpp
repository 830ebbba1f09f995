// The bound of peak memory: never below what any interleaving reaches, and no looser than it must
// be.
#include "ir/memory_bound.h"
#include "tests/compiler/corpus.h"
#include "tests/compiler/models.h"
#include "tests/compiler/symbolic.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

MemoryCosts costs_of(const ModelSpec& model) {
  MemoryCosts costs{{}, 2};
  for (size_t c = 0; c < model.calls.size(); ++c)
    costs.calls.push_back({.saved = 100 + static_cast<int64_t>(c), .deferred = 70});
  return costs;
}

/// As MemoryCosts say, worked out apart.
SlotBytes bytes_of(const PlanSet& plans, const MemoryCosts& costs) {
  SlotBytes bytes;
  for (const Plan& plan : plans.plans) {
    auto& its = bytes.emplace_back(plan.slots.size());
    for (const Instruction& each : plan.instructions)
      for (size_t o = 0; o < each.outputs.size(); ++o) {
        if (!each.outputs[o])
          continue;
        const uint32_t s = each.outputs[o].value;
        const int64_t rows = plans.rows(each.self);
        const ValueKind kind = plan.slots[s].value.kind;
        if (kind == ValueKind::Saved || kind == ValueKind::Deferred)
          for (CallId call : each.chunks[o])
            its[s] += rows * (kind == ValueKind::Saved ? costs.calls[call.value].saved
                                                       : costs.calls[call.value].deferred);
        else
          its[s] = plan.slots[s].type.bytes(rows);
      }
  }
  return bytes;
}

std::vector<MemoryBound> bounds_of(const PlanSet& plans, const ModelSpec& model,
                                   const MemoryCosts& costs) {
  auto bounds = bound_memory(plans, model, costs);
  if (!bounds.ok())
    FAIL(bounds.error().to_string());
  return *std::move(bounds);
}

} // namespace

TEST_CASE("no interleaving takes more than the bound, and many take as much") {
  size_t devices = 0, reached = 0;
  for (const GoodPlans& good : corpus()) {
    INFO(good.name);
    const MemoryCosts costs = costs_of(*good.model);
    const SlotBytes bytes = bytes_of(good.plans, costs);
    std::map<DeviceIndex, int64_t> seen;
    Terms terms;
    for (uint64_t seed = 0; seed < 100; ++seed)
      for (const auto& [device, peak] :
           run_symbolically(good.plans, *good.model, terms, seed, bytes).peak)
        seen[device] = std::max(seen[device], peak);
    for (const MemoryBound& bound : bounds_of(good.plans, *good.model, costs)) {
      INFO("device " << bound.device);
      // Of working memory only windows are seen from outside: calls take none here.
      const int64_t live = bound.values + bound.saved + bound.working;
      CHECK(live >= seen[bound.device]);
      CHECK(2 * live <= 3 * seen[bound.device]);
      ++devices;
      reached += live == seen[bound.device];
    }
  }
  INFO(reached << " of " << devices);
  CHECK(reached * 5 > devices);
}

TEST_CASE("state is counted by what a rank keeps") {
  const auto model = chain(4, 8);
  const int64_t params = 4 * 64 * 8;
  for (const auto& [name, moments] :
       {std::pair("dp:2", 2 * params), std::pair("zero1:2", params)}) {
    const PlanSet plans = plans_of(model, Strategy().schedule(name, 2));
    for (const MemoryBound& bound : bounds_of(plans, *model, {{}, 2})) {
      CHECK(bound.params == params);
      CHECK(bound.gradients == params);
      CHECK(bound.moments == moments);
    }
  }
}

TEST_CASE("GPipe keeps every microbatch, 1F1B as many as stages are ahead") {
  const auto model = chain(4, 64);
  MemoryCosts costs;
  costs.calls.resize(model->calls.size(), {.saved = 1'000'000});
  for (int64_t m : {8, 16})
    for (const auto& [name, kept] : {std::pair("gpipe:4", m), std::pair("1f1b:4", int64_t{4})}) {
      const PlanSet plans = plans_of(model, Strategy().schedule(name, m));
      const int64_t rows = 64 / m;
      const auto bounds = bounds_of(plans, *model, costs);
      INFO(name << " " << m);
      CHECK(bounds[0].saved == kept * rows * 1'000'000);
      if (kept != m) // the last stage: one microbatch of its layer and the loss
        CHECK(bounds[3].saved == 2 * rows * 1'000'000);
    }
}

TEST_CASE("what is received ahead of its use is counted, and what cannot be sent yet is not") {
  // A stage of 1F1B cannot run ahead of the backwards that its forwards wait for, so that what its
  // neighbours receive does not grow with the microbatches.
  const auto model = chain(4, 64);
  auto values = [&](const char* name, int64_t m) {
    const PlanSet plans = plans_of(model, Strategy().schedule(name, m));
    return bounds_of(plans, *model, {})[1].values / (64 / m);
  };
  CHECK(values("1f1b:4", 16) == values("1f1b:4", 32));
  CHECK(values("gpipe:4", 32) > values("gpipe:4", 16));
}

TEST_CASE("a cap that may be passed is refused, with who holds what") {
  const auto model = chain(4, 8);
  const PlanSet plans = plans_of(model, Strategy().schedule("1f1b:2", 2));
  const MemoryCosts costs = costs_of(*model);
  int64_t most = 0;
  for (const MemoryBound& bound : bounds_of(plans, *model, costs))
    most = std::max(most, bound.peak());
  CHECK(verify_memory(plans, *model, costs, most).ok());
  const auto refused = verify_memory(plans, *model, costs, most - 1);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().kind == ErrorKind::OutOfMemory);
  CHECK(refused.error().where == "device 0, role g0, F lin0..lin1 @1, directive 3 (place)");
  CHECK(refused.error().message ==
        "up to 6984 bytes may be live, the cap is 6983: parameters 1024, gradients 1024, moments "
        "2048, values 1280, kept for later passes 1608, working 0");
}
