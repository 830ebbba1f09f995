// What the pictures share.
#include "compiler/simulate/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace piper::compiler {

using namespace ir;

const char* to_string(Work work) {
  switch (work) {
  case Work::Forward:
    return "forward";
  case Work::Backward:
    return "backward";
  case Work::BackwardInput:
    return "backward for inputs";
  case Work::BackwardWeight:
    return "backward for weights";
  case Work::Communication:
    return "communication";
  case Work::Update:
    return "update";
  case Work::Other:
    return "other";
  }
  return "?";
}

Work work_of(Opcode op) {
  switch (op) {
  case Opcode::Forward:
  case Opcode::Recompute:
    return Work::Forward;
  case Opcode::Backward:
    return Work::Backward;
  case Opcode::BackwardInput:
    return Work::BackwardInput;
  case Opcode::BackwardWeight:
    return Work::BackwardWeight;
  case Opcode::Send:
  case Opcode::Recv:
  case Opcode::AllReduce:
  case Opcode::ReduceScatter:
  case Opcode::AllGather:
  case Opcode::Gather:
  case Opcode::Redistribute:
  case Opcode::Offload:
  case Opcode::Fetch:
  case Opcode::Commit:
  case Opcode::SendMirror:
  case Opcode::RecvMirror:
  case Opcode::SendState:
  case Opcode::RecvState:
    return Work::Communication;
  case Opcode::Update:
  case Opcode::UpdateMirror:
    return Work::Update;
  case Opcode::Input:
  case Opcode::Seed:
  case Opcode::Add:
  case Opcode::Loss:
  case Opcode::Release:
  case Opcode::ZeroGrads:
  case Opcode::CopyState:
    return Work::Other;
  }
  return Work::Other;
}

const Instruction& instruction_of(const Simulation& simulation, const PlanSet& plans,
                                  const Span& span) {
  const RoleId role = simulation.devices[span.device].role;
  return plans.plans[role.value].instructions[span.instruction];
}

std::vector<Lane> lanes(const Simulation& simulation, const PlanSet& plans) {
  std::map<std::pair<uint32_t, uint32_t>, Lane> by_stream;
  for (const Span& span : simulation.spans)
    if (span.end > span.start)
      by_stream[{span.device, span.stream}].spans.push_back(&span);
  std::vector<Lane> result;
  for (auto& [key, lane] : by_stream) {
    std::tie(lane.device, lane.stream) = key;
    const DeviceReport& device = simulation.devices[lane.device];
    const std::string& stream = plans.plans[device.role.value].streams[lane.stream];
    lane.name = device.count == 1
                    ? fmt::format("device {} {}", device.device, stream)
                    : fmt::format("devices {} +{} {}", device.device, device.count - 1, stream);
    std::sort(lane.spans.begin(), lane.spans.end(),
              [](const Span* a, const Span* b) { return a->start < b->start; });
    result.push_back(std::move(lane));
  }
  return result;
}

std::string format_seconds(double seconds) {
  if (seconds >= 1)
    return fmt::format("{:.3f} s", seconds);
  if (seconds >= 1e-3)
    return fmt::format("{:.3f} ms", seconds * 1e3);
  return fmt::format("{:.2f} us", seconds * 1e6);
}

} // namespace piper::compiler
