// State moves completely, from owners to owners, and no more than it has to.
#include "ir/verify.h"
#include "tests/compiler/models.h"

#include <algorithm>
#include <map>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;
using Catch::Matchers::Contains;

namespace {

/// By bucket and mirror (0: the bucket itself), as in StateRange.
using State =
    std::map<std::tuple<DeviceIndex, Epoch, uint32_t, StateKind, uint32_t>, std::vector<double>>;
const std::vector<StateKind> kKinds = {StateKind::Param, StateKind::Moment1, StateKind::Moment2,
                                       StateKind::Step};

std::pair<int64_t, int64_t> kept(const Bucket& bucket, StateKind kind, size_t rank) {
  if (kind == StateKind::Step)
    return {0, 1};
  if (!(kind == StateKind::Param ? bucket.shard_params : bucket.shard_optimizer))
    return {0, bucket.numel};
  const auto shard = static_cast<int64_t>(rank % bucket.shards),
             share = bucket.numel / bucket.shards;
  return {shard * share, (shard + 1) * share};
}

/// The number that element `k` of a parameter's array has, wherever it lies.
double truth(ParamId param, StateKind kind, int64_t k) {
  return kind == StateKind::Step ? 7 : 1 + param.value * 1000.0 + k + 0.1 * static_cast<int>(kind);
}

/// Calls fn(device, bucket, kind, param, index in the array, element number) for all that is kept.
template <class Fn> void for_each(const PlanSet& plans, const ModelSpec& model, Fn fn) {
  for (uint32_t b = 0; b < plans.buckets.size(); ++b) {
    const Bucket& bucket = plans.buckets[b];
    const auto& devices = plans.groups[bucket.group.value].devices;
    for (size_t rank = 0; rank < devices.size(); ++rank)
      for (StateKind kind : kKinds) {
        if (kind == StateKind::Step) {
          fn(devices[rank], b, kind, bucket.params[0], 0, 0);
          continue;
        }
        const auto [begin, end] = kept(bucket, kind, rank);
        for (size_t i = 0; i < bucket.params.size(); ++i)
          for (int64_t k = 0; k < model.param(bucket.params[i]).type.numel(0); ++k)
            if (const int64_t at = bucket.offsets[i] + k; at >= begin && at < end)
              fn(devices[rank], b, kind, bucket.params[i], at, k);
      }
  }
}

/// What the devices of the plans keep.
State state_of(const PlanSet& plans, const ModelSpec& model, Epoch epoch) {
  State state;
  for_each(plans, model,
           [&](DeviceIndex d, uint32_t b, StateKind kind, ParamId p, int64_t at, int64_t k) {
             auto& array = state[{d, epoch, b, kind, 0}];
             array.resize(std::max<size_t>(array.size(), plans.buckets[b].numel));
             array[at] = truth(p, kind, k);
           });
  return state;
}

/// Runs the plan on plain vectors and returns how many elements went over a wire.
int64_t run(const PlanSet& plans, State& state) {
  int64_t sent = 0;
  std::map<EdgeId, std::vector<double>> wire;
  auto slice = [&](DeviceIndex device, const StateRange& range) {
    auto& array = state[{device, range.epoch, range.bucket.value, range.kind, range.mirror}];
    if (array.size() < static_cast<size_t>(range.begin + range.count))
      array.resize(range.begin + range.count);
    return array.begin() + range.begin;
  };
  for (int pass = 0; pass < 2; ++pass) // sends and copies, then receives
    for (const auto& [device, role] : plans.devices)
      for (const Instruction& i : plans.plans[role.value].instructions) {
        if (pass == 0 && i.op == Opcode::CopyState)
          std::copy_n(slice(device, i.source), i.source.count, slice(device, i.target));
        if (pass == 0 && i.op == Opcode::SendState) {
          const auto from = slice(device, i.source);
          wire[i.edge].assign(from, from + i.source.count);
          sent += i.source.count;
        }
        if (pass == 1 && i.op == Opcode::RecvState) {
          REQUIRE(wire[i.edge].size() == static_cast<size_t>(i.target.count));
          std::copy(wire[i.edge].begin(), wire[i.edge].end(), slice(device, i.target));
        }
      }
  return sent;
}

PlanSet plans_of(std::shared_ptr<const ModelSpec> model, const std::string& strategy, Epoch epoch) {
  compiler::CompileOptions options;
  options.epoch = epoch;
  return compile_ok(model, Strategy().schedule(strategy, 4), options).plans;
}

} // namespace

TEST_CASE("state arrives whole, for every pair of layouts") {
  for (const auto& model : {chain(5, 8), load_model("tied")})
    for (const std::string from : {"single", "dp:2", "dp:4", "zero1:4", "zero1:4,within=2",
                                   "zero3:4,within=2", "1f1b:2", "dp:2x1f1b:2", "zero1:2x1f1b:2"})
      for (const std::string to :
           {"single", "dp:4", "zero1:2", "zero1:4", "zero2:4,within=2", "zero3:4,within=2",
            "zero3:4", "gpipe:3", "1f1b:4", "zero1:2x1f1b:2"}) {
        INFO(model->name << ": " << from << " to " << to);
        if (model->calls.size() < 5 && to == "1f1b:4")
          continue; // as many stages as calls: covered by the longer chain
        const PlanSet before = plans_of(model, from, 3), after = plans_of(model, to, 4);
        auto migration = compiler::compile_migration(before, after, *model, kKinds);
        if (!migration.ok())
          FAIL(migration.error().to_string());
        State state = state_of(before, *model, 3);
        run(*migration, state);
        bool whole = true;
        for_each(after, *model,
                 [&](DeviceIndex d, uint32_t b, StateKind kind, ParamId p, int64_t at, int64_t k) {
                   const auto& array = state[{d, 4, b, kind, 0}];
                   whole &=
                       static_cast<size_t>(at) < array.size() && array[at] == truth(p, kind, k);
                 });
        CHECK(whole);
      }
}

TEST_CASE("mirrors are filled from whoever has what they mirror") {
  const auto model = chain(5, 8);
  for (const std::string from : {"single", "dp:2", "zero1:4", "zero1:2x1f1b:2", "1f1b:3"}) {
    INFO(from);
    const PlanSet before = plans_of(model, from, 3);
    compiler::CompileOptions options;
    options.epoch = 4;
    const PlanSet after =
        compile_ok(model, Strategy().schedule("zero1:2x1f1b:2", 4).mirror({}, 2), options).plans;
    auto migration = compiler::compile_migration(before, after, *model, kKinds);
    if (!migration.ok())
      FAIL(migration.error().to_string());
    const auto parsed = PlanSet::parse(migration->to_text(model.get()));
    REQUIRE(parsed.ok());
    CHECK(*parsed == *migration);
    State state = state_of(before, *model, 3);
    run(*migration, state);
    size_t mirrored = 0;
    bool whole = true;
    for (uint32_t b = 0; b < after.buckets.size(); ++b) {
      const Bucket& bucket = after.buckets[b];
      REQUIRE(bucket.mirrors.size() == 2);
      for (uint32_t m = 0; m < 2; ++m)
        for (size_t rank = 0; rank < 2; ++rank) // each owns a half
          for (StateKind kind : kKinds) {
            const DeviceIndex device = after.groups[bucket.mirrors[m].value].devices[rank];
            const auto& array = state[{device, 4, b, kind, m + 1}];
            if (kind == StateKind::Step) {
              whole &= !array.empty() && array[0] == truth(bucket.params[0], kind, 0);
              continue;
            }
            for (size_t i = 0; i < bucket.params.size(); ++i)
              for (int64_t k = 0; k < model->param(bucket.params[i]).type.numel(0); ++k) {
                const auto at = static_cast<size_t>(bucket.offsets[i] + k);
                if (at * 2 / static_cast<size_t>(bucket.numel) != rank)
                  continue;
                whole &= at < array.size() && array[at] == truth(bucket.params[i], kind, k);
                ++mirrored;
              }
          }
    }
    CHECK(whole);
    CHECK(mirrored == 2 * 3 * 5 * 64);
    // Every element is asked for.
    auto& list = migration->plans[migration->devices.begin()->second.value].instructions;
    const auto lost = std::find_if(list.begin(), list.end(), [](const Instruction& each) {
      return each.op == Opcode::CopyState && each.target.mirror > 0;
    });
    if (lost == list.end())
      continue;
    list.erase(lost);
    const auto refused = verify(*migration, *model);
    REQUIRE_FALSE(refused.ok());
    CHECK_THAT(refused.error().message,
               Contains("nothing fills element ") && Contains(" of mirror "));
  }
}

TEST_CASE("nothing is sent that a device has already") {
  auto model = chain(4, 8);
  State state;
  auto migration = compiler::compile_migration(plans_of(model, "dp:4", 0),
                                               plans_of(model, "1f1b:4", 1), *model, kKinds);
  REQUIRE(migration.ok());
  CHECK(run(*migration, state) == 0);
  // Within sub-groups of two, each device has half of everything.
  migration = compiler::compile_migration(plans_of(model, "zero3:4,within=2", 0),
                                          plans_of(model, "dp:4", 1), *model, kKinds);
  REQUIRE(migration.ok());
  CHECK(run(*migration, state) == 4 * 3 * 4 * 64 / 2);
  // One device to two stages: the second stage's parameters and moments, and its step count.
  migration = compiler::compile_migration(plans_of(model, "single", 0),
                                          plans_of(model, "1f1b:2", 1), *model, kKinds);
  REQUIRE(migration.ok());
  CHECK(run(*migration, state) == 3 * 2 * 64 + 1);
  // Neighbouring parameters move as one range.
  CHECK(migration->edges.size() == 4);
}

TEST_CASE("a migration prints and parses back") {
  auto model = chain(4, 8);
  auto migration = compiler::compile_migration(plans_of(model, "zero1:2", 0),
                                               plans_of(model, "1f1b:2", 1), *model, kKinds);
  REQUIRE(migration.ok());
  auto parsed = PlanSet::parse(migration->to_text(model.get()));
  if (!parsed.ok())
    FAIL(parsed.error().to_string());
  CHECK(*parsed == *migration);
}
