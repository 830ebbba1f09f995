// The actor that compiles beside the running iterations. Runs on a thread of its own.
#pragma once

#include "actors/compile_epoch.h"
#include "actors/messages.h"
#include "ir/model_spec.h"
#include "ir/plan.h"

#include <map>
#include <memory>

namespace piper::actors {

class CompilerActor : public caf::event_based_actor {
public:
  CompilerActor(caf::actor_config& config, std::shared_ptr<const ir::ModelSpec> model,
                CompileTarget target);
  caf::behavior make_behavior() override;

private:
  const std::shared_ptr<const ir::ModelSpec> model_;
  const CompileTarget target_;
  std::map<Epoch, ir::PlanSet> epochs_; ///< the committed one, and one that may become it
};

} // namespace piper::actors
