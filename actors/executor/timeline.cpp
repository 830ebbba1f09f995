#include "actors/executor/timeline.h"

#include <algorithm>

namespace piper::executor {

namespace {
/// In nanoseconds. The steady clock has no epoch that another machine could know.
int64_t since_1970(Clock::time_point time) {
  std::chrono::nanoseconds result{}, doubt = std::chrono::nanoseconds::max();
  for (int attempt = 0; attempt < 5; ++attempt) { // this thread may lose its core between the two
    const Clock::time_point before = Clock::now();
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const Clock::time_point after = Clock::now();
    if (after - before < doubt) {
      doubt = after - before;
      result = now - (before - time);
    }
  }
  return result.count();
}
} // namespace

ir::Timeline timeline_of(const BoundPlan& plan, ir::DeviceIndex device,
                         const ir::ModelSpec& model) {
  const ir::RoleId role = plan.plans->role_of(device);
  const ir::Plan& its = plan.plans->plans[role.value];
  Clock::time_point first = Clock::time_point::max();
  for (const auto& instruction : plan.instructions)
    first = std::min(first, instruction->started);
  if (first == Clock::time_point{} || plan.instructions.empty())
    return {};

  ir::Timeline timeline;
  timeline.origin = since_1970(first);
  for (const std::string& stream : its.streams)
    timeline.lanes.push_back({device, 1, stream, {}});
  const auto seconds = [&](Clock::time_point time) {
    return std::chrono::duration<double>(time - first).count();
  };
  for (size_t i = 0; i < its.instructions.size(); ++i) {
    const ir::Instruction& instruction = its.instructions[i];
    const BoundInstruction& ran = *plan.instructions[i];
    timeline.lanes[instruction.stream].spans.push_back({plan.plans->name(role, instruction, &model),
                                                        instruction.op, instruction.microbatch,
                                                        seconds(ran.started), seconds(ran.ended)});
  }
  return timeline;
}

} // namespace piper::executor
