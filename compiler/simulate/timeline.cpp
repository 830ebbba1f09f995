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

std::vector<std::vector<const TimelineSpan*>> by_instruction(const Timeline& timeline,
                                                             const PlanSet& plans) {
  std::vector<std::vector<const TimelineSpan*>> spans;
  size_t first_lane = 0;
  for (const auto& [device, role] : plans.devices) {
    const Plan& plan = plans.plans[role.value];
    std::vector<size_t> next(plan.streams.size());
    auto& its = spans.emplace_back();
    for (const Instruction& each : plan.instructions)
      its.push_back(&timeline.lanes.at(first_lane + each.stream).spans.at(next[each.stream]++));
    first_lane += plan.streams.size();
  }
  return spans;
}

Result<double> longest_path(const Timeline& timeline, const PlanSet& plans,
                            const ModelSpec& model) {
  std::vector<std::vector<double>> seconds;
  for (const auto& device : by_instruction(timeline, plans)) {
    auto& its = seconds.emplace_back();
    for (const TimelineSpan* span : device)
      its.push_back(span->end - span->start);
  }
  CostModel free;
  free.calls.resize(model.calls.size());
  Cluster cluster;
  cluster.levels = {{.name = "free"}};
  PIPER_TRY(const Simulation simulation,
            simulate(plans, model, free, cluster,
                     {.every_device = true, .timeline = false, .seconds = &seconds}));
  return simulation.makespan;
}

} // namespace piper::compiler
