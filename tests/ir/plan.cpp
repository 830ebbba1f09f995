#include "ir/plan.h"
#include "tests/ir/plans.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

TEST_CASE("plan sets print and parse back") {
  for (const std::string& text : {pipeline_plans(), replicated_plans(), migration_plans()}) {
    const auto set = PlanSet::parse(text);
    REQUIRE(set.ok());
    CHECK(set->to_text() == text);
    CHECK(*PlanSet::parse(set->to_text()) == *set);
  }
}

TEST_CASE("names of the model are comments, and change nothing") {
  const PlanSet set = *PlanSet::parse(pipeline_plans());
  const auto model = chain_spec(2);
  const std::string text = set.to_text(model.get());
  CHECK(text.find("\n  F [c1 | c2] @0 as g1 (s0, s2) -> (s3, s4, s5) free s0, s2 wait e0 "
                  "# F l1..loss @0\n") != std::string::npos);
  CHECK(text.find("# saved.l0 @1 on g0\n") != std::string::npos);
  CHECK(text.find("  param p0 at 0                                                "
                  " # l0.w\n") != std::string::npos);
  CHECK(*PlanSet::parse(text) == set);
}

TEST_CASE("instructions have names") {
  const auto model = chain_spec(2);
  const PlanSet set = *PlanSet::parse(pipeline_plans());
  auto name = [&](uint32_t role, size_t i, const ModelSpec* m) {
    return set.name(RoleId(role), set.plans[role].instructions[i], m);
  };
  CHECK(name(0, 0, model.get()) == "input x @0");
  CHECK(name(0, 1, model.get()) == "F l0 @0");
  CHECK(name(0, 2, model.get()) == "send l0 @0 to g1");
  CHECK(name(0, 6, model.get()) == "recv d.l0 @0 from g1");
  CHECK(name(0, 6, nullptr) == "recv d.v1 @0 from g1");
  CHECK(name(0, 10, nullptr) == "commit");
  CHECK(name(0, 11, nullptr) == "update layer=0");
  CHECK(name(1, 3, nullptr) == "F c1..c2 @0");
  const PlanSet moves = *PlanSet::parse(migration_plans());
  CHECK(moves.name(RoleId(0), moves.plans[0].instructions[1]) ==
        "send-state param of bucket 0 [0, 16) to device 1");
}

TEST_CASE("a plan set knows roles, ranks and rows") {
  PlanSet set = *PlanSet::parse(replicated_plans());
  CHECK(set.role_of(1) == RoleId(0));
  CHECK(!set.role_of(9));
  CHECK(set.rank_in(GroupId(0), 1) == 1);
  CHECK(set.rank_in(GroupId(0), 9) == -1);
  set.microbatches = 2;
  CHECK(set.rows(GroupId(0)) == 4);
  CHECK(set.first_row(GroupId(0), 1, 1) == 12);
  set.groups[0].replicated = false;
  CHECK(set.rows(GroupId(0)) == 8);
  CHECK(set.first_row(GroupId(0), 1, 1) == 8);
}

TEST_CASE("errors in a plan set's text name the line") {
  auto error = [](const std::string& from, const std::string& to) {
    const auto result = PlanSet::parse(replaced(pipeline_plans(), from, to));
    REQUIRE(!result.ok());
    CHECK(result.error().kind == ErrorKind::User);
    return fmt::format("{}: {}", result.error().where, result.error().message);
  };
  CHECK(error("plans train", "plans trial") == "line 1: there is no kind of plan \"trial\"");
  CHECK(error("batch 16 micro", "batch x micro") ==
        "line 1: expected the rows of the batch, found \"x microbatches 2 world g\"");
  CHECK(error("edge 1 \"", "edge 7 \"") ==
        "line 10: entries are numbered from 0 in order: expected 1");
  CHECK(error("role r1", "role r7") == "line 36: roles are numbered from 0 in order: expected r1");
  CHECK(error("groups g1, g2 devices 1", "groups g1, g2 devices 0") ==
        "line 36: device 0 has a second role");
  CHECK(error("slot s7 d.v1 @1", "slot s8 d.v1 @1") ==
        "line 23: slots are numbered from 0 in order: expected s7");
  CHECK(error("F [c0] @0", "F [x0] @0") == "line 25: expected a call like c3, found \"x0\"");
  CHECK(error("B [c0] @0", "Z [c0] @0") == "line 32: there is no instruction \"Z\"");
  CHECK(error("(s6) stream recv", "(s6) stream revc") ==
        "line 30: the role has no stream \"revc\"");
  CHECK(error("free s1, s6 wait e0 by 0", "wait e0 free s1, s6 by 0") ==
        "line 32: expected the end of the line, found \"free s1, s6 by 0\"");
}
