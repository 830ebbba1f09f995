#include "compiler/simulate/render.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace piper::compiler {

using namespace ir;

std::string render_trace(const Simulation& simulation, const PlanSet& plans,
                         const ModelSpec* model) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  const auto microseconds = [](double seconds) { return seconds * 1e6; };
  for (const DeviceReport& device : simulation.devices) {
    const std::string name = device.count == 1 ? fmt::format("device {}", device.device)
                                               : fmt::format("device {} and {} like it",
                                                             device.device, device.count - 1);
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", device.device},
                      {"args", {{"name", name}}}});
    const auto& streams = plans.plans[device.role.value].streams;
    for (size_t s = 0; s < streams.size(); ++s)
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", device.device},
                        {"tid", s},
                        {"args", {{"name", streams[s]}}}});
  }
  for (const Span& span : simulation.spans) {
    const DeviceReport& device = simulation.devices[span.device];
    const Instruction& each = instruction_of(simulation, plans, span);
    events.push_back({{"ph", "X"},
                      {"name", plans.name(device.role, each, model)},
                      {"cat", to_string(work_of(each.op))},
                      {"pid", device.device},
                      {"tid", span.stream},
                      {"ts", microseconds(span.start)},
                      {"dur", microseconds(span.end - span.start)}});
  }
  const auto stream_of = [&](uint32_t device, uint32_t instruction) {
    return plans.plans[simulation.devices[device].role.value].instructions[instruction].stream;
  };
  for (size_t t = 0; t < simulation.transfers.size(); ++t) {
    const Transfer& its = simulation.transfers[t];
    const auto end_point = [&](const char* phase, uint32_t device, uint32_t instruction,
                               double time) {
      events.push_back({{"ph", phase},
                        {"name", "message"},
                        {"cat", "message"},
                        {"id", t},
                        {"pid", simulation.devices[device].device},
                        {"tid", stream_of(device, instruction)},
                        {"ts", microseconds(time)}});
    };
    end_point("s", its.from, its.send, its.start);
    end_point("f", its.to, its.recv, its.end);
    events.back()["bp"] = "e";
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

} // namespace piper::compiler
