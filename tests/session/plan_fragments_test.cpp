#include "actors/plan_fragments.h"

#include <catch2/catch.hpp>
#include <rapidcheck.h>

using namespace piper;
using namespace piper::actors;

namespace {

std::string lines(int count, int salt = 0) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += "instruction " + std::to_string(i * 7 + salt) + " does something\n";
  return text;
}
Manifest manifest(const std::vector<PlanFragment>& fragments) {
  Manifest ids;
  for (const auto& fragment : fragments)
    ids.push_back(fragment.id);
  return ids;
}

} // namespace

TEST_CASE("fragments joined are the text") {
  for (const std::string& text : {std::string(), std::string("one line"), lines(1), lines(5000)}) {
    FragmentStore store;
    auto fragments = cut(text);
    for (const auto& fragment : fragments)
      REQUIRE(store.add(fragment).ok());
    CHECK(*store.assemble(manifest(fragments)) == text);
  }
  CHECK(rc::check([](const std::vector<std::string>& parts) {
    std::string text, joined;
    for (const auto& part : parts)
      text += part + "\n";
    for (const auto& fragment : cut(text))
      joined += fragment.text;
    RC_ASSERT(joined == text);
  }));
}

TEST_CASE("a change in one line sends few fragments again") {
  std::string before = lines(5000), after = before;
  after.replace(after.find("does", after.size() / 2), 4, "DOES");
  after.insert(after.find('\n', after.size() / 3) + 1, "a new line\n");
  auto old_fragments = cut(before);
  REQUIRE(old_fragments.size() > 50);
  auto known = names({manifest(old_fragments)});
  size_t to_send = 0;
  for (const auto& fragment : cut(after))
    to_send += !known.count(fragment.id);
  CHECK(to_send >= 2);
  CHECK(to_send <= 4);
}

TEST_CASE("fragments have a largest size") {
  // Equal lines: either each ends a fragment or none does.
  std::string text;
  for (int i = 0; i < 50'000; ++i)
    text += "same\n";
  for (const auto& fragment : cut(text))
    CHECK(fragment.text.size() <= kMaxFragment);
}

TEST_CASE("a store refuses damage, names what is missing and forgets what is not named") {
  FragmentStore store;
  auto fragments = cut(lines(1000));
  REQUIRE(fragments.size() > 2);
  auto damaged = fragments[0];
  damaged.text[0] ^= 1;
  CHECK(store.add(damaged).error().message ==
        "plan fragment " + damaged.id.to_string() + " arrived damaged");
  for (const auto& fragment : fragments)
    REQUIRE(store.add(fragment).ok());
  store.keep_only({{fragments[0].id}, {fragments[1].id}});
  CHECK(store.size() == 2);
  CHECK(store.assemble(manifest(fragments)).error().message ==
        "plan fragment " + fragments[2].id.to_string() + " is missing");
}

TEST_CASE("a device gets its role's plan and not the others'") {
  ir::PlanSet plans;
  plans.plans.resize(3);
  for (auto& plan : plans.plans)
    plan.streams = {"compute"};
  auto reduced = only_role(plans, ir::RoleId(1));
  CHECK(reduced.plans[0].streams.empty());
  CHECK(reduced.plans[1].streams.size() == 1);
  CHECK(reduced.plans[2].streams.empty());
  CHECK(only_role(plans, {}).plans[1].streams.empty());
}
