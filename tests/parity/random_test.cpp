// What nobody thought of: strategies at random train to parity or are refused, and changes to good
// plans that the verifier lets pass train to parity too.
#include "examples/models/gpt.h"
#include "examples/models/mlp.h"
#include "examples/models/registry.h"
#include "ir/verify.h"
#include "tests/compiler/compositions.h"
#include "tests/compiler/mutations.h"
#include "tests/parity/outcome.h"

#include <cstdlib>
#include <random>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::test;

namespace {

constexpr uint32_t kDevices = 4;
constexpr int kIterations = 2;
constexpr double kTolerance = 1e-12;

/// Whose updates are linear in the gradients: nothing amplifies the order of sums.
executor::OptimizerSpec sgd() {
  return {.kind = executor::OptimizerSpec::Kind::Sgd, .lr = 0.1, .momentum = 0.9};
}

/// The first error ends it.
template <class Plans>
Result<Outcome> train(const std::shared_ptr<const Model>& model, Plans plans, uint32_t devices) {
  Cluster cluster(model, devices, sgd());
  PIPER_CHECK_OK(cluster.start(std::move(plans)));
  Outcome outcome;
  PIPER_TRY(outcome.losses, cluster.steps(kIterations));
  PIPER_TRY(outcome.parameters, cluster.parameters());
  return outcome;
}

void check(const Result<Outcome>& got, const Outcome& want) {
  if (!got.ok()) {
    FAIL_CHECK(got.error().to_string());
    return;
  }
  CHECK(difference(got->losses, want.losses) <= kTolerance);
  CHECK(difference(got->parameters, want.parameters) <= kTolerance);
}

/// A model, and what it learns on one device.
struct Subject {
  std::shared_ptr<const Model> model;
  std::map<int64_t, Outcome> alone; ///< by microbatches of the whole batch

  explicit Subject(Result<Model> made)
      : model(std::make_shared<const Model>(std::move(made).value_or_throw())) {}
  const Outcome& single(const ir::PlanSet& plans) {
    const int64_t microbatches = plans.microbatches * plans.groups.front().shares();
    auto [found, first] = alone.try_emplace(microbatches);
    if (first)
      found->second =
          train(model, ir::Strategy().schedule("single", microbatches), 1).value_or_throw();
    return found->second;
  }
};

std::vector<Subject> subjects() {
  std::vector<Subject> all;
  all.emplace_back(models::make_mlp(
      R"({"layers": 4, "d_in": 4, "d_hidden": 6, "d_out": 3, "batch": 24, "skip": true,
          "dtype": "float64"})"));
  all.emplace_back(models::make_gpt(
      R"({"layers": 2, "d_model": 8, "heads": 2, "seq": 4, "batch": 24, "tied": true,
          "dtype": "float64", "sample_microbatches": 4})"));
  return all;
}

uint64_t seed() {
  const char* text = std::getenv("PIPER_SEED");
  return text ? std::strtoull(text, nullptr, 10) : 1;
}

} // namespace

TEST_CASE("directives at random are refused with a reason or train to parity") {
  std::mt19937_64 random(seed());
  const int count = std::getenv("PIPER_LONG") ? 2'000 : 150;
  auto all = subjects();
  int trained = 0;
  for (int i = 0; i < count; ++i) {
    Subject& subject = all[random() % all.size()];
    const ir::Strategy strategy = compose(*subject.model->spec, kDevices, random);
    INFO(subject.model->spec->name << ", strategy " << i << ": " << strategy.to_json());
    const auto plans = Cluster(subject.model, kDevices).compile(strategy);
    if (!plans.ok()) {
      INFO(plans.error().to_string());
      CHECK(is_reasoned(plans.error()));
      continue;
    }
    ++trained;
    check(train(subject.model, *plans, kDevices), subject.single(*plans));
  }
  CHECK(trained > count / 4);
}

TEST_CASE("changes to good plans that the verifier accepts train to parity") {
  std::mt19937_64 random(seed());
  const int count = std::getenv("PIPER_LONG") ? 500 : 30;
  auto all = subjects();
  const char* expressions[] = {"single",         "dp:2",           "zero1:2x1f1b:2", "zero2:2",
                               "zero3:2x1f1b:2", "interleaved:2",  "zbh1:2",         "zbv:2",
                               "dualpipev:2",    "dp:2xdualpipe:2"};
  int accepted = 0;
  for (int attempt = 0; accepted < count && attempt < 100 * count; ++attempt) {
    Subject& subject = all[random() % all.size()];
    ir::Strategy strategy;
    strategy.schedule(expressions[random() % std::size(expressions)], 8);
    if (random() % 4 == 0)
      strategy.recompute({});
    const auto plans = Cluster(subject.model, kDevices).compile(strategy).value_or_throw();
    const auto kind = mutation_kinds()[static_cast<size_t>(attempt) % mutation_kinds().size()];
    auto mutation = mutate(plans, kind, random);
    if (!mutation || !ir::verify(mutation->plans, *subject.model->spec).ok())
      continue;
    ++accepted;
    INFO(subject.model->spec->name << ", " << strategy.to_json() << ", " << mutation->what);
    check(train(subject.model, mutation->plans, kDevices), subject.single(plans));
  }
  CHECK(accepted == count);
}
