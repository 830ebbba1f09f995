// What the verifier says of plans in which the ranks of a block do not fit together.
#include "ir/verify.h"
#include "tests/compiler/corpus.h"
#include "tests/compiler/models.h"

#include <fmt/format.h>

#include <algorithm>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

PlanSet named(const std::shared_ptr<const ModelSpec>& model, const char* name) {
  return plans_of(model, Strategy().schedule(name, 2));
}

std::string error_of(const PlanSet& plans, const ModelSpec& model) {
  const auto verified = verify(plans, model);
  REQUIRE_FALSE(verified.ok());
  CHECK(verified.error().kind == ErrorKind::Internal);
  INFO(verified.error().where);
  CHECK(verified.error().where.find("role ") != std::string::npos);
  return verified.error().message;
}

/// The first redistribute in a plan for which `wanted` holds.
template <class Wanted> Instruction& find_move(Plan& plan, Wanted wanted) {
  const auto found =
      std::find_if(plan.instructions.begin(), plan.instructions.end(), [&](const auto& each) {
        return each.op == Opcode::Redistribute && wanted(each);
      });
  REQUIRE(found != plan.instructions.end());
  return *found;
}
bool any(const Instruction&) {
  return true;
}

Instruction& reader_of(Plan& plan, SlotId slot) {
  for (Instruction& each : plan.instructions)
    if (std::find(each.inputs.begin(), each.inputs.end(), slot) != each.inputs.end())
      return each;
  FAIL("nobody reads the slot");
  return plan.instructions.front();
}

} // namespace

TEST_CASE("a summand is not read as the whole") {
  const auto model = load_model("sharded");
  PlanSet plans = named(model, "tp:2");
  Plan& plan = plans.plans[0];
  Instruction& sum = find_move(plan, any);
  const SlotId summand = sum.inputs[0], whole = sum.outputs[0];
  Instruction& reader = reader_of(plan, whole);
  std::replace(reader.inputs.begin(), reader.inputs.end(), whole, summand);
  std::replace(reader.frees.begin(), reader.frees.end(), whole, summand);
  sum.frees = {whole};
  CHECK(error_of(plans, *model).ends_with(" is partial there, not whole"));
}

TEST_CASE("a call is shared only as it can be cut") {
  auto model = *load_model("sharded");
  PlanSet plans = named(load_model("sharded"), "tp:2");
  model.calls[model.find_call("attn").value].cut = Cut::None;
  plans.model = model.fingerprint();
  CHECK(error_of(plans, model) ==
        "the ranks of g1 cannot share call attn so: it is weights in blocks of 2");
}

TEST_CASE("the inputs of the model are read whole") {
  const auto model = load_model("sharded");
  PlanSet plans = named(model, "sp:2");
  Plan& plan = plans.plans[0];
  Instruction& slice = find_move(plan, any);
  auto input = std::find_if(plan.instructions.begin(), plan.instructions.end(),
                            [](const auto& each) { return each.op == Opcode::Input; });
  REQUIRE(slice.inputs[0] == input->outputs[0]);
  input->self = slice.self;
  plan.slots[slice.inputs[0].value] = plan.slots[slice.outputs[0].value];
  CHECK(error_of(plans, *model) ==
        fmt::format("what it works on is whole, but g{} is tokens", slice.self.value));
}

TEST_CASE("a value is received in the layout in which it is sent") {
  const auto model = load_model("sharded");
  PlanSet plans = plans_of(model, Strategy()
                                      .split({}, 2)
                                      .shard_tensor({{"layer", 0}}, {0, 1}, 2, true)
                                      .shard_tensor({{"layer", 1}}, {2, 3}, 2, true));
  for (Plan& plan : plans.plans)
    for (Instruction& recv : plan.instructions) {
      if (recv.op != Opcode::Recv)
        continue;
      const auto gather =
          std::find_if(plan.instructions.begin(), plan.instructions.end(), [&](const auto& each) {
            return each.op == Opcode::Redistribute && each.inputs[0] == recv.outputs[0] &&
                   plans.groups[each.self.value].layout == Layout::Whole;
          });
      if (gather == plan.instructions.end())
        continue;
      // What comes is taken for the whole, as if it had been gathered.
      recv.self = gather->self;
      recv.outputs = gather->outputs;
      recv.records = gather->records;
      plan.instructions.erase(gather);
      CHECK(error_of(plans, *model) ==
            "device 0 sends it tokens in blocks of 2, here it is whole in blocks of 2");
      return;
    }
  FAIL("nothing is gathered when it comes");
}

TEST_CASE("a key of a collective is used once") {
  const auto model = load_model("sharded");
  PlanSet plans = named(model, "tp:2");
  Plan& plan = plans.plans[0];
  Instruction again = find_move(plan, any);
  Instruction& first = find_move(plan, any);
  again.frees = first.frees;
  first.frees.clear();
  again.records = {};
  again.frees.push_back(SlotId(plan.slots.size()));
  plan.slots.push_back(Slot(plan.slots[again.outputs[0].value]));
  again.outputs = {SlotId(plan.slots.size() - 1)};
  plan.instructions.insert(plan.instructions.begin() + (&first - plan.instructions.data()) + 1,
                           again);
  CHECK(error_of(plans, *model).ends_with(" is the key of an earlier one too"));
}

TEST_CASE("a rank holds the pieces of parameters that its calls use") {
  const auto model = load_model("tied_cut");
  PlanSet plans = named(model, "tp:2x1f1b:2");
  const auto tied = std::find_if(plans.buckets.begin(), plans.buckets.end(),
                                 [](const Bucket& bucket) { return bucket.name == "tied:w"; });
  REQUIRE(tied != plans.buckets.end());
  auto& devices = plans.groups[tied->group.value].devices;
  REQUIRE(devices == std::vector<DeviceIndex>{0, 1, 2, 3});
  std::swap(devices[0], devices[1]);
  CHECK(error_of(plans, *model).ends_with(" have other pieces of parameter w in bucket tied:w"));
}
