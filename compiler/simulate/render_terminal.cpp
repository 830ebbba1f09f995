#include "compiler/simulate/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace piper::compiler {

using namespace ir;

namespace {

const char* shade(Work work) {
  switch (work) {
  case Work::Forward:
    return "░";
  case Work::Backward:
    return "▓";
  case Work::BackwardInput:
    return "▒";
  case Work::BackwardWeight:
    return "▚";
  case Work::Communication:
    return "─";
  case Work::Update:
    return "█";
  case Work::Other:
    return "·";
  }
  return "?";
}

} // namespace

std::string render_terminal(const Simulation& simulation, const PlanSet& plans, int width) {
  const std::vector<Lane> all = lanes(simulation, plans);
  size_t names = 0;
  double last = 0;
  std::set<Work> used;
  for (const Lane& lane : all) {
    names = std::max(names, lane.name.size());
    last = std::max(last, lane.spans.back()->end);
  }
  const auto columns = static_cast<size_t>(std::max(width - static_cast<int>(names) - 2, 10));
  const auto column = [&](double time) {
    return std::min(columns,
                    static_cast<size_t>(std::lround(time / last * static_cast<double>(columns))));
  };
  std::string text;
  for (const Lane& lane : all) {
    std::vector<std::string> cells(columns, " ");
    for (const Span* span : lane.spans) {
      const Instruction& each = instruction_of(simulation, plans, *span);
      used.insert(work_of(each.op));
      const size_t from = column(span->start), to = column(span->end);
      std::string label = each.microbatch >= 0 ? std::to_string(each.microbatch) : "";
      if (label.size() > to - from)
        label.clear();
      for (size_t c = from; c < to; ++c)
        cells[c] =
            c - from < label.size() ? std::string(1, label[c - from]) : shade(work_of(each.op));
    }
    std::string line = fmt::format("{:<{}}  ", lane.name, names);
    for (const std::string& cell : cells)
      line += cell;
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  std::string legend;
  for (Work work : used)
    legend += fmt::format("{} {}   ", shade(work), to_string(work));
  return text + fmt::format("{:<{}}  {}{} in all\n", "", names, legend, format_seconds(last));
}

} // namespace piper::compiler
