// The proof of the prover: whatever is changed in a good plan set, the verifier rejects it, or it
// does no harm however the streams interleave.
#include "ir/verify.h"
#include "tests/compiler/corpus.h"
#include "tests/compiler/models.h"
#include "tests/compiler/mutations.h"
#include "tests/compiler/symbolic.h"

#include <fmt/format.h>

#include <cstdlib>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Why a run differs from the good one; empty if it doesn't.
std::string harm(const SymbolicRun& good, const SymbolicRun& run) {
  if (!run.failure.empty())
    return run.failure;
  for (const auto& [name, terms] : good.result)
    if (auto found = run.result.find(name); found == run.result.end() || found->second != terms)
      return name + " differs";
  return run.result.size() == good.result.size() ? "" : "more comes out than should";
}

constexpr int kInterleavings = 8;

/// Whether the machine can follow a plan that was changed so: all that it names still exists.
bool in_range_after(MutationKind kind) {
  return kind != MutationKind::Name && kind != MutationKind::Device;
}

} // namespace

TEST_CASE("good plans come to one result however their streams interleave") {
  for (const GoodPlans& good : corpus()) {
    INFO(good.name);
    Terms terms;
    const SymbolicRun first = run_symbolically(good.plans, *good.model, terms, 0);
    CHECK(first.failure == "");
    CHECK(first.result.size() > 1);
    for (uint64_t seed = 1; seed < 50; ++seed)
      CHECK(harm(first, run_symbolically(good.plans, *good.model, terms, seed)) == "");
  }
}

TEST_CASE("pipelines come to the losses and gradients of one device") {
  for (const auto& model : {chain(4, 8), load_model("skip"), load_model("tied")}) {
    Terms terms;
    auto result = [&](const std::string& name) {
      return run_symbolically(plans_of(model, Strategy().schedule(name, 4)), *model, terms, 0);
    };
    const SymbolicRun one = result("single");
    const SymbolicRun in_two =
        run_symbolically(plans_of(model, Strategy().split({}, 4).split_backward({}).place({}, {0})),
                         *model, terms, 0);
    CHECK(harm(one, in_two) == "");
    for (const char* name : {"gpipe:2", "1f1b:2", "1f1b:3"}) {
      INFO(model->name << " " << name);
      const SymbolicRun other = result(name);
      CHECK(other.failure == "");
      for (const auto& [what, expected] : one.result)
        if (what.starts_with("loss") || what.starts_with("sum"))
          for (uint32_t term : other.result.at(what)) // a tied parameter is summed for each holder
            CHECK(term == expected[0]);
    }
  }
}

TEST_CASE("blocks come to the losses and gradients of one device") {
  for (const auto& model : {load_model("sharded"), load_model("tied_cut")}) {
    Terms terms;
    auto result = [&](const std::string& name, int64_t microbatches) {
      return run_symbolically(plans_of(model, Strategy().schedule(name, microbatches)), *model,
                              terms, 0);
    };
    const SymbolicRun one = result("single", 4);
    for (const char* name : {"tp:2", "sp:2", "tp:2xdp:2", "sp:2xzero3:2x1f1b:2"}) {
      INFO(model->name << " " << name);
      const SymbolicRun other = result(name, 4);
      CHECK(other.failure == "");
      for (const auto& [what, expected] : one.result)
        if (what.starts_with("sum"))
          for (uint32_t term : other.result.at(what))
            CHECK(term == expected[0]);
    }
  }
}

TEST_CASE("a part that is missing from a gradient is told by its readers") {
  const auto model = load_model("skip");
  PlanSet plans = plans_of(model, Strategy().place({}, {0}));
  for (Instruction& each : plans.plans[0].instructions)
    if (each.op == Opcode::Add)
      each.inputs.erase(each.inputs.begin() + 1);
  const auto refused = verify(plans, *model);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().where == "role g0, B a @0, directive 0 (place)");
  CHECK(refused.error().message ==
        "its gradient of a is the sum of the parts of b d, not of the parts of b c d");
}

TEST_CASE("a change to a good plan set is rejected or does no harm") {
  const uint64_t seed = number_from("PIPER_SEED", 1);
  const size_t count = std::getenv("PIPER_LONG") ? 6'000 : 480;
  const std::vector<GoodPlans> all = corpus();
  std::vector<Terms> terms(all.size());
  std::vector<SymbolicRun> expected;
  for (size_t g = 0; g < all.size(); ++g)
    expected.push_back(run_symbolically(all[g].plans, *all[g].model, terms[g], 0));

  // `harmful` of those rejected were also seen to do harm: the runs would find what the verifier
  // misses. They can follow a plan whose names are all in range.
  struct Tally {
    size_t rejected = 0, harmful = 0, harmless = 0, missed = 0;
  };
  std::map<MutationKind, Tally> tallies;
  std::mt19937_64 random(seed);
  size_t made = 0;
  for (size_t attempt = 0; made < count && attempt < 4 * count; ++attempt) {
    const MutationKind kind = mutation_kinds()[attempt % mutation_kinds().size()];
    const size_t g = static_cast<size_t>(random() % all.size());
    auto mutation = mutate(all[g].plans, kind, random);
    if (!mutation)
      continue;
    // Some are changed twice: two wrongs may look right.
    bool in_range = in_range_after(kind);
    if (random() % 4 == 0) {
      const MutationKind other = mutation_kinds()[random() % mutation_kinds().size()];
      if (auto second = mutate(mutation->plans, other, random)) {
        mutation->what += "; " + second->what;
        mutation->plans = std::move(second->plans);
        in_range &= in_range_after(other);
      }
    }
    ++made;
    Tally& tally = tallies[kind];
    auto harm_of_it = [&] {
      std::string why;
      for (int each = 0; each < kInterleavings && why.empty(); ++each)
        why =
            harm(expected[g], run_symbolically(mutation->plans, *all[g].model, terms[g], random()));
      return why;
    };
    if (const auto verified = verify(mutation->plans, *all[g].model); !verified.ok()) {
      ++tally.rejected;
      if (verified.error().where.empty() || verified.error().message.empty())
        FAIL_CHECK("an error without a place: " << verified.error().to_string());
      if (in_range)
        tally.harmful += !harm_of_it().empty();
      continue;
    }
    const std::string why = harm_of_it();
    ++(why.empty() ? tally.harmless : tally.missed);
    if (!why.empty())
      FAIL_CHECK(all[g].name << ", " << to_string(kind) << ", " << mutation->what
                             << ": accepted, but " << why);
  }

  std::string table = fmt::format("seed {}: {} mutants\n{:12}{:>9}{:>15}{:>10}{:>8}\n", seed, made,
                                  "", "rejected", "(harm seen)", "harmless", "missed");
  auto add_line = [&](const char* name, const Tally& tally) {
    table += fmt::format("{:12}{:9}{:15}{:10}{:8}\n", name, tally.rejected, tally.harmful,
                         tally.harmless, tally.missed);
  };
  Tally sum;
  for (const auto& [kind, tally] : tallies) {
    add_line(to_string(kind), tally);
    sum.rejected += tally.rejected;
    sum.harmful += tally.harmful;
    sum.harmless += tally.harmless;
    sum.missed += tally.missed;
    INFO(to_string(kind));
    CHECK(tally.rejected > 0);
    if (in_range_after(kind))
      CHECK(tally.harmful > 0);
  }
  add_line("all", sum);
  auto percent = [](size_t part, size_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  table +=
      fmt::format("rejected: {:.1f}% of all, {:.1f}% of those that may do harm\n",
                  percent(sum.rejected, made), percent(sum.rejected, sum.rejected + sum.missed));
  WARN(table);
  CHECK(tallies.size() == mutation_kinds().size());
  CHECK(made == count);
}
