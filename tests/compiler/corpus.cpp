#include "tests/compiler/corpus.h"

#include "compiler/compile.h"
#include "tests/compiler/models.h"

namespace piper::test {

using namespace ir;

PlanSet plans_of(const std::shared_ptr<const ModelSpec>& model, const Strategy& strategy,
                 PlanKind kind) {
  compiler::CompileOptions options;
  options.kind = kind;
  return compile_ok(model, strategy, options).plans;
}

std::vector<GoodPlans> corpus() {
  std::vector<GoodPlans> all;
  auto add = [&](const std::string& name, std::shared_ptr<const ModelSpec> model,
                 const Strategy& strategy, PlanKind kind = PlanKind::Train) {
    PlanSet plans = plans_of(model, strategy, kind);
    all.push_back({name, std::move(model), std::move(plans)});
  };
  auto named = [](const std::string& expression, int64_t microbatches) {
    return Strategy().schedule(expression, microbatches);
  };
  const auto four = chain(4, 8), five = chain(5, 24), skip = load_model("skip"),
             tied = load_model("tied");
  add("single", four, named("single", 2));
  add("dp:2", four, named("dp:2", 4));
  add("dp:2, small buckets", four,
      Strategy()
          .split({}, 2)
          .replicate(Replicate{.filter = {}, .devices = {0, 1}, .bucket_mb = 0.0005})
          .fuse({{"PASS", "F"}}));
  add("zero1:2", four, named("zero1:2", 4));
  add("gpipe:4", four, named("gpipe:4", 4));
  add("1f1b:4", four, named("1f1b:4", 4));
  add("1f1b:3, uneven", five, named("1f1b:3", 6));
  add("dp:2x1f1b:2", four, named("dp:2x1f1b:2", 4));
  add("zero1:2x1f1b:2, tied", tied, named("zero1:2x1f1b:2", 4));
  add("1f1b:2, tied", tied, named("1f1b:2", 2));
  add("single, skip", skip, named("single", 3));
  add("1f1b:4, skip", skip, named("1f1b:4", 3));
  add("dp:2x1f1b:2, skip", skip, named("dp:2x1f1b:2", 6));
  add("two stages a device, skip", skip,
      Strategy()
          .split({}, 2)
          .place({{"layer", std::vector<int64_t>{0, 2}}}, {0})
          .place({{"layer", std::vector<int64_t>{1, 3}}}, {1}));
  add("overlap", load_model("chain2"),
      Strategy().split({}, 2).place({}, {0}).overlap({{"PASS", "B"}, {"MB", 0}},
                                                     {{"PASS", "F"}, {"MB", 1}}));
  add("chunks", four,
      Strategy()
          .split({}, 2)
          .place({}, {0})
          .fuse({{"PASS", "F"}})
          .fuse({{"PASS", "B"}, {"layer", std::vector<int64_t>{2, 3}}}));
  add("backwards in two, skip", skip,
      Strategy()
          .split({}, 2)
          .split_backward({})
          .place({{"layer", std::vector<int64_t>{0, 1}}}, {0})
          .place({{"layer", std::vector<int64_t>{2, 3}}}, {1}));
  add("backwards in two, chunks, dp:2", four,
      Strategy()
          .split({}, 2)
          .split_backward({{"MB", 1}})
          .replicate(Replicate{.filter = {}, .devices = {0, 1}})
          .fuse({{"PASS", "F"}})
          .fuse({{"PASS", "BI"}})
          .fuse({{"PASS", "BW"}, {"layer", std::vector<int64_t>{2, 3}}}));
  add("zero2:2x1f1b:2, skip", skip, named("zero2:2x1f1b:2", 4));
  add("zero3:2x1f1b:2, skip", skip, named("zero3:2x1f1b:2", 4));
  add("zero1:4, within 2", four, named("zero1:4,within=2", 4));
  add("zero2:4, within 2x1f1b:2", four, named("zero2:4,within=2x1f1b:2", 8));
  add("zero3:4, within 2, skip", skip, named("zero3:4,within=2", 4));
  add("dp:2, fused updates", four,
      Strategy()
          .split({}, 2)
          .replicate(Replicate{.filter = {}, .devices = {0, 1}, .bucket_mb = 0.0001})
          .fuse({}, true));
  add("zero3:4, within 2, fused updates", four, named("zero3:4,within=2", 4).fuse({}, true));
  add("1f1b:2, some fused updates, skip", skip, named("1f1b:2", 3).fuse({{"stage", 1}}, true));
  add("zero1:2x1f1b:2, fused updates, tied", tied, named("zero1:2x1f1b:2", 4).fuse({}, true));
  const Replicate sharded{.filter = {},
                          .devices = {0, 1},
                          .shard_grads = true,
                          .shard_params = true,
                          .bucket_mb = 0.0001};
  add("zero3, no prefetch", four, Strategy().split({}, 2).replicate(sharded).prefetch({}, 0));
  add("zero3, backwards in two, far prefetch", tied,
      Strategy().split({}, 2).split_backward({}).replicate(sharded).prefetch({}, 3));
  add("recompute, chunks", four,
      Strategy().split({}, 2).place({}, {0}).fuse({{"PASS", "F"}}).recompute({{"layer", 1}}));
  add("1f1b:2, recompute, skip", skip, named("1f1b:2", 3).recompute({}));
  add("zero3, recompute", four, Strategy().split({}, 2).replicate(sharded).recompute({}));
  add("offload, weights put off", four,
      Strategy()
          .split({}, 2)
          .place({}, {0})
          .split_backward({})
          .order({{{{"PASS", "F"}}}, {{{"PASS", "BI"}}}, {{{"PASS", "BW"}}}})
          .offload({.filter = {}}));
  add("offload, chunks", four,
      Strategy()
          .split({}, 4)
          .place({}, {0})
          .fuse({{"PASS", "F"}})
          .order({{{{"PASS", "F"}}}, {{{"PASS", "B"}}}})
          .offload({.filter = {}}));
  add("1f1b:2, offload what is recomputed, skip", skip,
      named("1f1b:2", 3).recompute({{"layer", 1}}).offload({.filter = {}}));
  add("zero3, everything offloaded", four,
      Strategy().split({}, 2).split_backward({}).replicate(sharded).offload(
          {.filter = {}, .activations = true, .optimizer = true, .params = true}));
  add("zero1:2, mirror", four, named("zero1:2", 2).mirror({}));
  add("1f1b:3, two mirrors, skip", skip, named("1f1b:3", 3).mirror({}, 2));
  add("zero3:2x1f1b:2, mirror", four, named("zero3:2x1f1b:2", 4).mirror({}));
  add("backwards in two, mirror of a layer, skip", skip,
      Strategy()
          .split({}, 2)
          .split_backward({})
          .place({{"layer", std::vector<int64_t>{0, 1}}}, {0})
          .place({{"layer", std::vector<int64_t>{2, 3}}}, {1})
          .mirror({{"layer", 1}}));
  add("zbh1:2", four, named("zbh1:2", 4));
  add("dualpipev:2", four, named("dualpipev:2", 4));
  add("evaluation of 1f1b:2", four, named("1f1b:2", 4), PlanKind::Eval);
  const auto cut = load_model("sharded"), tied_cut = load_model("tied_cut");
  add("tp:2", cut, named("tp:2", 2));
  add("sp:2", cut, named("sp:2", 2));
  add("tp:2, tied", tied_cut, named("tp:2", 2));
  add("sp:4x1f1b:2, tied", tied_cut, named("sp:4x1f1b:2", 4));
  add("tp:2xdp:2x1f1b:2, tied", tied_cut, named("tp:2xdp:2x1f1b:2", 4));
  add("sp:2xzero1:2", cut, named("sp:2xzero1:2", 4));
  add("sp:2xzero3:2, backwards in two", tied_cut, named("sp:2xzero3:2", 4).split_backward({}));
  add("tp:2xzbh1:2, recompute", cut, named("tp:2xzbh1:2", 4).recompute({{"call", "attn"}}));
  add("sp:2x1f1b:3", cut, named("sp:2x1f1b:3", 2));
  add("ep:2", cut, named("ep:2", 4));
  add("ep:2xzero2:2", cut, named("ep:2xzero2:2", 8));
  add("ep:2xzero3:2, recompute", cut, named("ep:2xzero3:2", 4).recompute({}));
  add("ep:2x1f1b:2", cut, named("ep:2x1f1b:2", 8));
  add("ep:2xdualpipev:2", cut, named("ep:2xdualpipev:2", 8));
  add("tp:2xep:2", cut, named("tp:2xep:2", 2));
  add("sp:2xep:4, recompute", cut, named("sp:2xep:4", 4).recompute({}));
  add("tp:2xep:4x1f1b:2", cut, named("tp:2xep:4x1f1b:2", 4));
  add("ep:4, backwards in two", cut, named("ep:4", 4).split_backward({}));
  add("evaluation of sp:2xdp:2", cut, named("sp:2xdp:2", 4), PlanKind::Eval);
  add("tp:2, mirror", cut, named("tp:2", 2).mirror({}));
  add("ep:2xzero1:2, mirror", cut, named("ep:2xzero1:2", 4).mirror({}));
  add("evaluation of ep:2", cut, named("ep:2", 2), PlanKind::Eval);
  return all;
}

} // namespace piper::test
