#include "compiler/simulate/timeline.h"

#include <algorithm>

namespace piper::compiler {

using namespace ir;

Timeline timeline_of(const Simulation& simulation, const PlanSet& plans, const ModelSpec* model) {
  Timeline timeline;
  std::vector<uint32_t> first_lane; ///< of each device
  for (const DeviceReport& device : simulation.devices) {
    first_lane.push_back(static_cast<uint32_t>(timeline.lanes.size()));
    for (const std::string& stream : plans.plans[device.role.value].streams)
      timeline.lanes.push_back({device.device, device.count, stream, {}});
  }
  const auto instruction = [&](uint32_t device, uint32_t index) -> const Instruction& {
    return plans.plans[simulation.devices[device].role.value].instructions[index];
  };
  for (const Span& span : simulation.spans) {
    const Instruction& its = instruction(span.device, span.instruction);
    timeline.lanes[first_lane[span.device] + span.stream].spans.push_back(
        {plans.name(simulation.devices[span.device].role, its, model), its.op, its.microbatch,
         span.start, span.end});
  }
  for (TimelineLane& lane : timeline.lanes)
    std::stable_sort(lane.spans.begin(), lane.spans.end(),
                     [](const auto& a, const auto& b) { return a.start < b.start; });
  for (const Transfer& its : simulation.transfers)
    timeline.messages.push_back({first_lane[its.from] + instruction(its.from, its.send).stream,
                                 first_lane[its.to] + instruction(its.to, its.recv).stream,
                                 its.start, its.end});
  return timeline;
}

} // namespace piper::compiler
