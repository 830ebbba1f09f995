#include "compiler/simulate/render.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace piper::compiler {

using namespace ir;

std::string render_trace(const Timeline& timeline) {
  using Json = nlohmann::ordered_json;
  Json events = Json::array();
  const auto microseconds = [](double seconds) { return seconds * 1e6; };
  std::vector<size_t> threads; ///< of each lane, within its device
  for (size_t l = 0; l < timeline.lanes.size(); ++l) {
    const TimelineLane& lane = timeline.lanes[l];
    const bool first = l == 0 || timeline.lanes[l - 1].device != lane.device;
    threads.push_back(first ? 0 : threads.back() + 1);
    if (first)
      events.push_back({{"ph", "M"},
                        {"name", "process_name"},
                        {"pid", lane.device},
                        {"args",
                         {{"name", lane.count == 1 ? fmt::format("device {}", lane.device)
                                                   : fmt::format("device {} and {} like it",
                                                                 lane.device, lane.count - 1)}}}});
    events.push_back({{"ph", "M"},
                      {"name", "thread_name"},
                      {"pid", lane.device},
                      {"tid", threads[l]},
                      {"args", {{"name", lane.stream}}}});
  }
  for (size_t l = 0; l < timeline.lanes.size(); ++l)
    for (const TimelineSpan& span : timeline.lanes[l].spans)
      events.push_back({{"ph", "X"},
                        {"name", span.name},
                        {"cat", to_string(work_of(span.op))},
                        {"pid", timeline.lanes[l].device},
                        {"tid", threads[l]},
                        {"ts", microseconds(span.start)},
                        {"dur", microseconds(span.end - span.start)}});
  for (size_t m = 0; m < timeline.messages.size(); ++m) {
    const TimelineMessage& its = timeline.messages[m];
    const auto end_point = [&](const char* phase, uint32_t lane, double time) {
      events.push_back({{"ph", phase},
                        {"name", "message"},
                        {"cat", "message"},
                        {"id", m},
                        {"pid", timeline.lanes[lane].device},
                        {"tid", threads[lane]},
                        {"ts", microseconds(time)}});
    };
    end_point("s", its.from, its.start);
    end_point("f", its.to, its.end);
    events.back()["bp"] = "e";
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

} // namespace piper::compiler
