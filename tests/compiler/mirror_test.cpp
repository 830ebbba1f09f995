// Who mirrors whom, and that the verifier asks for each step of it.
#include "ir/verify.h"
#include "tests/compiler/corpus.h"
#include "tests/compiler/models.h"

#include <functional>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;
using Catch::Matchers::Contains;

namespace {

PlanSet mirrored(const std::string& expression, int64_t copies = 1) {
  return plans_of(chain(4, 8), Strategy().schedule(expression, 4).mirror({}, copies));
}

/// What the verifier says of changed plans of ZeRO-1 on two devices, which mirror each other.
std::string error_of(const std::function<void(PlanSet&)>& change) {
  PlanSet plans = mirrored("zero1:2");
  REQUIRE(verify(plans, *chain(4, 8)).ok());
  REQUIRE(plans.plans.size() == 1); // both do the same
  change(plans);
  const auto refused = verify(plans, *chain(4, 8));
  REQUIRE_FALSE(refused.ok());
  return refused.error().where + ": " + refused.error().message;
}
Instruction& only(PlanSet& plans, Opcode op) {
  auto& all = plans.plans[0].instructions;
  const auto is = [&](const Instruction& each) { return each.op == op; };
  REQUIRE(std::count_if(all.begin(), all.end(), is) == 1);
  return *std::find_if(all.begin(), all.end(), is);
}
auto without(Opcode op) {
  return [=](PlanSet& plans) {
    const EventId recorded = only(plans, op).records;
    auto& all = plans.plans[0].instructions;
    std::erase_if(all, [&](const Instruction& each) { return each.op == op; });
    for (Instruction& each : all)
      std::erase(each.waits, recorded);
  };
}

} // namespace

TEST_CASE("mirrors are far apart, and none is where the state is") {
  struct Case {
    const char* expression;
    int64_t copies;
    std::vector<std::vector<DeviceIndex>> mirrors; ///< of the first bucket
  };
  for (const Case& each :
       {Case{"zero1:2", 1, {{1, 0}}}, Case{"zero3:4", 1, {{2, 3, 0, 1}}}, Case{"1f1b:4", 1, {{2}}},
        Case{"1f1b:4", 3, {{1}, {2}, {3}}}, Case{"zero1:2x1f1b:2", 1, {{2, 3}}}}) {
    CAPTURE(each.expression, each.copies);
    const PlanSet plans = mirrored(each.expression, each.copies);
    std::vector<std::vector<DeviceIndex>> found;
    for (GroupId mirror : plans.buckets[0].mirrors)
      found.push_back(plans.groups[mirror.value].devices);
    CHECK(found == each.mirrors);
  }
}

TEST_CASE("mirrors leave devices of one role to one plan") {
  for (const char* expression : {"zero1:4", "zero3:2x1f1b:2", "1f1b:4"}) {
    CAPTURE(expression);
    const PlanSet plain = plans_of(chain(4, 8), Strategy().schedule(expression, 4));
    CHECK(mirrored(expression).plans.size() == plain.plans.size());
  }
}

TEST_CASE("a bucket of which one call is matched is mirrored whole") {
  const auto strategy = Strategy().schedule("zero1:2", 4).mirror({{"call", "lin2"}});
  const PlanSet plans = plans_of(chain(4, 8), strategy);
  REQUIRE(plans.buckets.size() == 1);
  CHECK(plans.buckets[0].mirrors.size() == 1);
}

TEST_CASE("evaluations have the mirrors of training, and do nothing with them") {
  const auto strategy = Strategy().schedule("zero3:2x1f1b:2", 4).mirror({});
  const PlanSet train = plans_of(chain(4, 8), strategy);
  const PlanSet eval = plans_of(chain(4, 8), strategy, PlanKind::Eval);
  CHECK(train.buckets == eval.buckets);
  for (const Bucket& bucket : train.buckets)
    for (GroupId mirror : bucket.mirrors)
      CHECK(train.groups[mirror.value] == eval.groups[mirror.value]);
  for (const Plan& plan : eval.plans)
    for (const Instruction& each : plan.instructions)
      CHECK(each.op < Opcode::SendMirror);
}

TEST_CASE("each step of a mirror is asked for, once and in order") {
  const std::string bucket = "layer=0..layer=3";
  CHECK(error_of(without(Opcode::SendMirror)) ==
        "role g0: bucket " + bucket + " is not sent to its mirror on g1");
  CHECK(error_of(without(Opcode::RecvMirror)) ==
        "role g0: the mirror of bucket " + bucket + " on g1 receives nothing");
  CHECK(error_of(without(Opcode::UpdateMirror)) ==
        "role g0: the mirror of bucket " + bucket + " on g1 is not updated");
  CHECK_THAT(error_of([](PlanSet& plans) {
               plans.plans[0].instructions.push_back(only(plans, Opcode::UpdateMirror));
             }),
             Contains(": bucket " + bucket + " has this done twice"));
  CHECK(error_of([](PlanSet& plans) { only(plans, Opcode::SendMirror).waits.clear(); }) ==
        "role g0, send-mirror " + bucket + " to g1: it may run before reduce-scatter " + bucket);
  for (const Opcode op : {Opcode::SendMirror, Opcode::RecvMirror})
    CHECK_THAT(error_of([&](PlanSet& plans) {
                 std::erase(only(plans, Opcode::Commit).waits, only(plans, op).records);
               }),
               Contains(": the commit does not wait for it"));
  CHECK_THAT(error_of([](PlanSet& plans) {
               auto& all = plans.plans[0].instructions;
               const auto commit = std::find_if(all.begin(), all.end(), [](const auto& each) {
                 return each.op == Opcode::Commit;
               });
               Instruction update = only(plans, Opcode::UpdateMirror);
               std::erase_if(all, [](const auto& each) { return each.op == Opcode::UpdateMirror; });
               all.insert(commit, update);
             }),
             Contains("update-mirror " + bucket + ": it may run before the commit"));
}

TEST_CASE("a mirror is on its own group, and that is a second copy") {
  CHECK_THAT(error_of([](PlanSet& plans) {
               only(plans, Opcode::UpdateMirror).self = only(plans, Opcode::Update).self;
             }),
             Contains(" has no mirror on g0"));
  CHECK_THAT(error_of([](PlanSet& plans) {
               only(plans, Opcode::RecvMirror).group = only(plans, Opcode::RecvMirror).self;
             }),
             Contains(" is not on g1"));
  CHECK_THAT(error_of([](PlanSet& plans) { plans.buckets[0].mirrors = {plans.buckets[0].group}; }),
             Contains("device 0 keeps two copies of what rank 0 of bucket layer=0..layer=3 owns"));
  CHECK_THAT(error_of([](PlanSet& plans) {
               plans.buckets[0].shards = 1;
               plans.buckets[0].shard_optimizer = false;
             }),
             Contains("bucket layer=0..layer=3 has a mirror of what several ranks own"));
  CHECK_THAT(error_of([](PlanSet& plans) { plans.buckets[0].fused_update = true; }),
             Contains("bucket layer=0..layer=3 has a mirror, but its update waits for no commit"));
  CHECK_THAT(error_of([](PlanSet& plans) { plans.buckets[0].mirrors = {GroupId(9)}; }),
             Contains("a mirror of bucket layer=0..layer=3 is on no group like its own"));
}
