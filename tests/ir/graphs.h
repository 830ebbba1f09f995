// A small graph as the compiler makes it: two layers on two devices, two microbatches.
#pragma once

#include "ir/graph.h"
#include "tests/ir/generators.h"

#include <string>

namespace piper::test {

inline std::string pipeline_text(const ir::Graph& graph) {
  return fmt::format("graph chain {}{}", graph.model->fingerprint().to_string(),
                     R"( microbatches 2 tag MB
group g0 devices 0
group g1 devices 1
group g2 devices 0, 1
bucket layer=0 on g0 f32 numel 16
  param l0.w at 0
bucket layer=1 on g1 f32 numel 16
  param l1.w at 0
region input
  input x @0 on g0 -> (x)
  input x @1 on g0 -> (x)
  input y @0 on g1 -> (y)
  input y @1 on g1 -> (y)
region "F layer=0"
  F l0 @0 on g0 (x) -> (saved.l0, l0) by 1
  F l0 @1 on g0 (x) -> (saved.l0, l0) by 1 after F l0 @0 on g0 by 3
region "F layer=1"
  F l1 @0 on g1 chunks [l1 | loss] (l0, y) -> (saved.l1, saved.loss, loss) by 2
  F l1 @1 on g1 chunks [l1 | loss] (l0, y) -> (saved.l1, saved.loss, loss) by 2
region loss
  loss loss @0 on g1 (loss)
  loss loss @1 on g1 (loss)
  seed loss @0 on g1 -> (d.loss) scale 0.5
  seed loss @1 on g1 -> (d.loss) scale 0.5
region "B layer=1"
  B l1 @0 on g1 chunks [l1 | loss] (saved.l1, saved.loss, d.loss) -> (d.l0, wgrad.l1) by 2
  B l1 @1 on g1 chunks [l1 | loss] (saved.l1, saved.loss, d.loss) -> (d.l0, wgrad.l1) by 2
region "B layer=0"
  B l0 @0 on g0 (saved.l0, d.l0) -> (wgrad.l0) by 1
  B l0 @1 on g0 (saved.l0, d.l0) -> (wgrad.l0) by 1
region transfer
  send l0 @0 on g0 to g1 (l0)
  recv l0 @0 on g1 from g0 -> (l0) stream recv after send l0 @0 on g0 to g1
  send l0 @1 on g0 to g1 (l0)
  recv l0 @1 on g1 from g0 -> (l0) stream recv after send l0 @1 on g0 to g1
  send d.l0 @0 on g1 to g0 (d.l0)
  recv d.l0 @0 on g0 from g1 -> (d.l0) stream recv after send d.l0 @0 on g1 to g0
  send d.l0 @1 on g1 to g0 (d.l0)
  recv d.l0 @1 on g0 from g1 -> (d.l0) stream recv after send d.l0 @1 on g1 to g0
region commit
  commit on g2 (wgrad.l0 @0 on g0, wgrad.l0 @1 on g0, wgrad.l1 @0 on g1, wgrad.l1 @1 on g1) -> (committed)
  update layer=0 on g0 (committed on g2) -> (updated.layer=0)
  update layer=1 on g1 (committed on g2) -> (updated.layer=1)
)");
}

inline std::shared_ptr<const ir::Strategy> pipeline_strategy() {
  auto strategy = std::make_shared<ir::Strategy>();
  strategy->split({}, 2)
      .place({{"layer", 0}}, {0})
      .place({{"layer", 1}}, {1})
      .order({{{{"MB", 0}}}, {{{"MB", 1}}}});
  return strategy;
}

inline ir::Graph pipeline_graph() {
  ir::Graph names;
  names.model = chain_spec(2);
  return ir::Graph::parse(pipeline_text(names), names.model, pipeline_strategy()).value_or_throw();
}

} // namespace piper::test
