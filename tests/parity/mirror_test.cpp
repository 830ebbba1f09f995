// Mirrors have what they mirror, bit by bit, after every iteration and after every change, and what
// is learned does not change by them.
#include "examples/models/registry.h"
#include "ir/memory_bound.h"
#include "tests/parity/outcome.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <stdexcept>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;
using namespace piper::ir;

namespace {

std::shared_ptr<const Model> gpt() {
  return made(models::make_gpt(
      R"({"layers": 4, "d_model": 16, "heads": 2, "seq": 8, "batch": 24, "dtype": "float64"})"));
}
std::shared_ptr<const Model> moe() {
  return made(models::make_moe(
      R"({"layers": 2, "d_model": 16, "heads": 4, "kv_heads": 2, "experts": 4, "top_k": 2,
          "d_ff": 12, "seq": 8, "batch": 24, "dtype": "float64"})"));
}

Strategy named(const std::string& expression, int64_t microbatches = 4) {
  return Strategy().schedule(expression, microbatches);
}

double stepped(Cluster& cluster) {
  auto loss = cluster.step();
  if (!loss.ok())
    FAIL(loss.error().to_string());
  return *loss;
}

/// Of a mirror and of what it mirrors, one array.
struct Pair {
  at::Tensor mirror, own;
};

std::vector<Pair> mirrored(Cluster& cluster) {
  std::vector<Pair> pairs;
  const PlanSet& plans = cluster.plans();
  std::vector<StateKind> kinds = executor::OptimizerSpec().state();
  kinds.push_back(StateKind::Param);
  for (uint32_t b = 0; b < plans.buckets.size(); ++b) {
    const Bucket& bucket = plans.buckets[b];
    const Group& group = plans.groups[bucket.group.value];
    for (uint32_t m = 0; m < bucket.mirrors.size(); ++m)
      for (size_t rank = 0; rank < group.size(); ++rank)
        for (StateKind kind : kinds) {
          const ElementRange owned = owned_range(bucket, group, static_cast<int>(rank));
          StateRange range{plans.epoch, BucketId(b), kind, owned.begin, owned.count()};
          if (kind == StateKind::Step)
            range.begin = 0, range.count = 1;
          auto own = cluster.device(group.devices[rank]).read(range);
          range.mirror = m + 1;
          const DeviceIndex at = plans.groups[bucket.mirrors[m].value].devices[rank];
          auto mirror = cluster.device(at).read(range);
          if (!own.ok() || !mirror.ok())
            FAIL((own.ok() ? mirror : own).error().to_string());
          pairs.push_back({*mirror, *own});
        }
  }
  return pairs;
}

bool equal(const std::vector<Pair>& pairs) {
  return std::all_of(pairs.begin(), pairs.end(),
                     [](const Pair& pair) { return at::equal(pair.mirror, pair.own); });
}

/// Trains with and without mirrors.
void check(const std::shared_ptr<const Model>& model, const Strategy& strategy, int64_t copies,
           uint32_t devices) {
  Cluster plain(model, devices), cluster(model, devices);
  started(plain, strategy);
  started(cluster, Strategy(strategy).mirror({}, copies));
  const auto before = mirrored(cluster);
  CHECK_FALSE(before.empty());
  CHECK(equal(before));
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    CHECK(stepped(cluster) == stepped(plain));
    const auto after = mirrored(cluster);
    CHECK(equal(after));
    CHECK_FALSE(at::equal(after.front().own, before.front().own));
    for (uint32_t d = 0; d < devices; ++d)
      CHECK(cluster.device(d).updated() == iteration);
  }
  CHECK(difference(*cluster.parameters(), *plain.parameters()) == 0);

  // A mirror costs the gradients of what is mirrored.
  const PlanSet& plans = cluster.plans();
  for (uint32_t d = 0; d < devices; ++d) {
    uint64_t more = 0;
    for (const Bucket& bucket : plans.buckets)
      if (const int rank = plans.rank_in(bucket.group, d); rank >= 0)
        more += bucket.mirrors.size() * static_cast<uint64_t>(size_of(bucket.dtype)) *
                static_cast<uint64_t>(
                    owned_range(bucket, plans.groups[bucket.group.value], rank).count());
    CHECK(cluster.last(d).bytes_sent == plain.last(d).bytes_sent + more);
  }
}

} // namespace

TEST_CASE("mirrors follow what they mirror, and change nothing") {
  const auto model = gpt();
  struct Entry {
    Strategy strategy;
    uint32_t devices;
    int64_t copies = 1;
  };
  const Offload kState{.filter = {}, .activations = false, .optimizer = true, .params = true};
  const Entry entries[] = {
      {named("zero1:2"), 2},        {named("zero2:2"), 2},
      {named("zero3:3", 6), 3, 2},  {named("zero3:2").offload(kState), 2},
      {named("1f1b:2"), 2},         {named("1f1b:3"), 3, 2},
      {named("zero1:2x1f1b:2"), 4}, {named("zero3:2x1f1b:2"), 4, 3},
      {named("dualpipev:2"), 2},
  };
  for (const Entry& entry : entries) {
    INFO(entry.strategy.to_json());
    check(model, entry.strategy, entry.copies, entry.devices);
  }
}

TEST_CASE("a rank's piece of a call is mirrored where another piece is") {
  for (const char* expression : {"ep:2", "tp:2", "sp:2", "tp:2xep:2"}) {
    INFO(expression);
    check(moe(), named(expression), 1, 2);
  }
  check(gpt(), named("tp:2"), 1, 2); // of some, columns
}

TEST_CASE("a change of strategy fills the mirrors of the next one") {
  Cluster cluster(gpt(), 4), plain(gpt(), 4);
  started(cluster, named("dp:2"));
  started(plain, named("dp:2"));
  for (const char* expression : {"zero1:4", "zero3:2x1f1b:2", "1f1b:3", "zero1:2"}) {
    INFO(expression);
    CHECK(std::abs(stepped(cluster) - stepped(plain)) <= 1e-12);
    REQUIRE(cluster.change(named(expression).mirror({})).ok());
    const auto moved = mirrored(cluster);
    CHECK_FALSE(moved.empty());
    CHECK(equal(moved));
    CHECK(std::abs(stepped(cluster) - stepped(plain)) <= 1e-12);
    CHECK(equal(mirrored(cluster)));
  }
}

TEST_CASE("an iteration that fails leaves mirrors as it leaves the state") {
  Model breaking = *gpt();
  breaking.data = [data = breaking.data](const BatchRequest& request) {
    if (request.iteration == 2 && request.first_row > 0)
      throw std::runtime_error("no such row");
    return data(request);
  };
  Cluster cluster(std::make_shared<const Model>(std::move(breaking)), 2);
  started(cluster, named("zero1:2").mirror({}));
  stepped(cluster);
  stepped(cluster);
  const auto before = mirrored(cluster);
  const auto failed = cluster.step();
  REQUIRE_FALSE(failed.ok());
  CHECK(failed.error().message.find("no such row") != std::string::npos);
  const auto after = mirrored(cluster);
  REQUIRE(after.size() == before.size());
  for (size_t i = 0; i < after.size(); ++i) {
    CHECK(at::equal(after[i].own, before[i].own));
    CHECK(at::equal(after[i].mirror, before[i].mirror));
  }
  for (uint32_t d = 0; d < 2; ++d)
    CHECK(cluster.device(d).updated() == 1);
}

TEST_CASE("mirrors take the memory that is foretold") {
  const auto model = gpt();
  for (const auto& [expression, devices] :
       {std::pair("zero1:2", 2U), {"zero3:2", 2U}, {"1f1b:2", 2U}, {"zero1:2x1f1b:2", 4U}}) {
    INFO(expression);
    Cluster cluster(model, devices);
    started(cluster, named(expression).mirror({}));
    stepped(cluster);
    stepped(cluster);
    const auto bounds =
        bound_memory(cluster.plans(), *model->spec, executor::OptimizerSpec().state());
    REQUIRE(bounds.ok());
    REQUIRE(bounds->size() == devices);
    for (const MemoryBound& bound : *bounds) {
      int64_t held = 0;
      for (const auto& holder : cluster.device(bound.device).holders())
        if (holder.what == "mirrors")
          held = holder.bytes;
      CHECK(held > 0);
      CHECK(held == bound.mirrors);
      CHECK(cluster.device(bound.device).peak_bytes() <= bound.peak());
    }
  }
}

TEST_CASE("a mirror that is not updated is seen") {
  Cluster cluster(gpt(), 2);
  auto plans = cluster.compile(named("zero1:2").mirror({}));
  REQUIRE(plans.ok());
  for (Plan& plan : plans->plans)
    std::erase_if(plan.instructions,
                  [](const Instruction& each) { return each.op == Opcode::UpdateMirror; });
  REQUIRE(cluster.start(*std::move(plans)).ok());
  stepped(cluster);
  CHECK_FALSE(equal(mirrored(cluster)));
}

TEST_CASE("what a device does not keep cannot be read") {
  Cluster cluster(gpt(), 2);
  started(cluster, named("zero1:2").mirror({}));
  const auto absent = cluster.device(0).read({0, BucketId(0), StateKind::Moment1, 0, 1, 1});
  REQUIRE_FALSE(absent.ok()); // that is its own
  CHECK(absent.error().message ==
        "moment1 [0, 1) of mirror 1 of bucket 0 in epoch 0 is not on this device");
  CHECK(cluster.device(1).read({0, BucketId(0), StateKind::Moment1, 0, 1, 1}).ok());
  CHECK(cluster.device(0).read({7, BucketId(0), StateKind::Param, 0, 1}).error().message ==
        "epoch 7 is not committed");
}
