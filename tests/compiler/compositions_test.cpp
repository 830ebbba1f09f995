// Whatever directives are put together, the compiler refuses them with a reason or makes plans that
// learn what one device learns: on symbols here, on tensors in tests/parity.
#include "compiler/compile.h"
#include "tests/compiler/compositions.h"
#include "tests/compiler/corpus.h"
#include "tests/compiler/models.h"
#include "tests/compiler/symbolic.h"

#include <cstdlib>
#include <map>
#include <set>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;
using namespace piper::test;

namespace {

constexpr uint32_t kDevices = 4;
constexpr uint64_t kInterleavings = 4;

/// A model, and what one device makes of it.
struct Subject {
  std::shared_ptr<const ModelSpec> model;
  Terms terms;
  std::map<int64_t, SymbolicRun> alone; ///< by microbatches of the whole batch

  const SymbolicRun& single(int64_t microbatches) {
    auto [found, first] = alone.try_emplace(microbatches);
    if (first)
      found->second = run_symbolically(plans_of(model, Strategy().schedule("single", microbatches)),
                                       *model, terms, 0);
    return found->second;
  }
};

struct Learned {
  std::map<uint32_t, double> losses; ///< of each, its share of the mean
  std::map<std::string, std::set<uint32_t>> sums;
  bool operator==(const Learned&) const = default;
};

/// The losses of all microbatches and replicas, and every sum of gradients that was applied.
Learned learned(const SymbolicRun& run) {
  Learned all;
  double losses = 0;
  for (const auto& [what, terms] : run.result)
    if (what.starts_with("loss"))
      losses += static_cast<double>(terms.size());
  for (const auto& [what, terms] : run.result) {
    if (what.starts_with("loss")) // of each rank of a block
      for (uint32_t term : terms)
        all.losses[term] += 1 / losses;
    else if (what.starts_with("sum"))
      all.sums[what].insert(terms.begin(), terms.end());
    else if (what.starts_with("gradient"))
      all.sums[what]; // left behind
  }
  return all;
}

} // namespace

TEST_CASE("directives at random are refused with a reason or learn what one device learns") {
  const char* seed = std::getenv("PIPER_SEED");
  std::mt19937_64 random(seed ? std::strtoull(seed, nullptr, 10) : 1);
  const int count = std::getenv("PIPER_LONG") ? 20'000 : 1'000;
  std::vector<Subject> subjects(6);
  subjects[0].model = chain(4, 24);
  subjects[1].model = load_model("skip");
  subjects[2].model = load_model("tied");
  subjects[3].model = load_model("blocks");
  subjects[4].model = load_model("sharded");
  subjects[5].model = load_model("tied_cut");

  std::map<std::string, int> accepted; ///< by directive
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    Subject& subject = subjects[random() % subjects.size()];
    const Strategy strategy = compose(*subject.model, kDevices, random);
    INFO(subject.model->name << ", strategy " << i << ": " << strategy.to_json());
    const auto compiled = compiler::compile(subject.model, strategy,
                                            {.devices = kDevices, .verify_passes = i % 4 == 0});
    if (!compiled.ok()) {
      INFO(compiled.error().to_string());
      CHECK(is_reasoned(compiled.error()));
      ++refused;
      continue;
    }
    const PlanSet& plans = compiled->plans;
    const int64_t replicas = plans.groups.front().shares();
    const auto expected = learned(subject.single(plans.microbatches * replicas));
    for (uint64_t each = 0; each < kInterleavings; ++each) {
      const auto run = run_symbolically(plans, *subject.model, subject.terms, random());
      CHECK(run.failure == "");
      CHECK(learned(run) == expected);
    }
    for (const Directive& directive : strategy.directives)
      ++accepted[directive.op()];
  }
  CHECK(refused > count / 20);
  for (const char* op :
       {"split", "split_backward", "place", "replicate", "order", "overlap", "fuse", "recompute",
        "prefetch", "mirror", "tag", "schedule", "shard", "shard_tensor"}) {
    INFO(op);
    CHECK(accepted[op] > count / 100);
  }
}
