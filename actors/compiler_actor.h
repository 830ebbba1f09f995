// The actor that compiles beside the running iterations. Runs on a thread of its own.
#pragma once

#include "actors/messages.h"
#include "ir/model_spec.h"
#include "ir/plan.h"

#include <map>
#include <memory>
#include <vector>

namespace piper::actors {

class CompilerActor : public caf::event_based_actor {
public:
  /// `kinds`: the arrays that a migration moves. `overlap`: see compile_epoch.
  CompilerActor(caf::actor_config& config, std::shared_ptr<const ir::ModelSpec> model,
                uint32_t devices, std::vector<ir::StateKind> kinds, bool overlap);
  caf::behavior make_behavior() override;

private:
  const std::shared_ptr<const ir::ModelSpec> model_;
  const uint32_t devices_;
  const std::vector<ir::StateKind> kinds_;
  const bool overlap_;
  std::map<Epoch, ir::PlanSet> epochs_; ///< the committed one, and one that may become it
};

} // namespace piper::actors
