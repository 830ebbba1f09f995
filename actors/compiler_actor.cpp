#include "actors/compiler_actor.h"

#include <exception>

namespace piper::actors {

CompilerActor::CompilerActor(caf::actor_config& config, std::shared_ptr<const ir::ModelSpec> model,
                             CompileTarget target)
    : caf::event_based_actor(config), model_(std::move(model)), target_(std::move(target)) {}

caf::behavior CompilerActor::make_behavior() {
  set_default_handler(caf::drop);
  return {
      [this](compile_atom, Epoch epoch, int64_t from, const StrategyText& strategy) {
        CompiledEpoch compiled;
        try {
          auto found = from < 0 ? epochs_.end() : epochs_.find(static_cast<Epoch>(from));
          compiled = compile_epoch(model_, strategy, epoch,
                                   found == epochs_.end() ? nullptr : &found->second, target_);
        } catch (const std::exception& e) {
          compiled.report = {.epoch = epoch, .ok = false, .error = internal_error(e.what())};
        }
        if (compiled.report.ok)
          epochs_.insert_or_assign(epoch, std::move(compiled.train));
        return std::move(compiled.report);
      },
      [this](discard_atom, Epoch epoch) { epochs_.erase(epoch); },
      [this](keep_atom, Epoch epoch) {
        std::erase_if(epochs_, [&](const auto& entry) { return entry.first != epoch; });
      },
  };
}

} // namespace piper::actors
