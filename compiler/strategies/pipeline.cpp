#include "compiler/strategies/strategies.h"

#include <string>

namespace piper::compiler {

using namespace ir;

Result<Strategy> pipeline(const PipelineShape& shape, StepBuilder steps) {
  PIPER_TRY(auto stages, cut_stages(*shape.model, shape.stages));
  Strategy strategy;
  strategy.split({}, shape.microbatches);
  for (int s = 0; s < shape.stages; ++s) {
    std::vector<std::string> calls;
    for (CallId call : stages[s])
      calls.push_back(shape.model->call(call).name);
    strategy.tag({{"call", std::move(calls)}}, "stage", s);
  }
  for (int s = 0; s < shape.stages; ++s) {
    std::vector<DeviceIndex> devices;
    for (int r = 0; r < shape.replicas; ++r)
      devices.push_back(static_cast<DeviceIndex>(s * shape.replicas + r));
    if (shape.replicas == 1)
      strategy.place({{"stage", s}}, devices);
    else
      strategy.replicate(Replicate{
          .filter = {{"stage", s}}, .devices = devices, .shard_optimizer = shape.shard_optimizer});
  }
  for (int s = 0; s < shape.stages; ++s) {
    std::vector<std::vector<Filter>> groups;
    for (const Step& step : steps(shape.stages, s, shape.microbatches))
      groups.push_back(
          {{{"stage", s}, {"PASS", std::string(1, step.pass)}, {"MB", step.microbatch}}});
    if (groups.size() > 1)
      strategy.order(std::move(groups));
  }
  for (int s = 0; s < shape.stages; ++s)
    strategy.fuse({{"stage", s}});
  return strategy;
}

} // namespace piper::compiler
