// What the pictures share.
#include "compiler/simulate/render.h"

#include <fmt/format.h>

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

std::vector<Row> rows(const Timeline& timeline) {
  std::vector<Row> result;
  for (const TimelineLane& lane : timeline.lanes) {
    Row row{lane.device,
            lane.count == 1
                ? fmt::format("device {} {}", lane.device, lane.stream)
                : fmt::format("devices {} +{} {}", lane.device, lane.count - 1, lane.stream),
            {}};
    for (const TimelineSpan& span : lane.spans)
      if (span.end > span.start)
        row.spans.push_back(&span);
    if (!row.spans.empty())
      result.push_back(std::move(row));
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
