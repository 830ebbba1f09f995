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

std::string render_terminal(const Timeline& timeline, int width) {
  const std::vector<Row> all = rows(timeline);
  size_t names = 0;
  double last = 0;
  std::set<Work> used;
  for (const Row& row : all) {
    names = std::max(names, row.name.size());
    last = std::max(last, row.spans.back()->end);
  }
  const auto columns = static_cast<size_t>(std::max(width - static_cast<int>(names) - 2, 10));
  const auto column = [&](double time) {
    return std::min(columns,
                    static_cast<size_t>(std::lround(time / last * static_cast<double>(columns))));
  };
  std::string text;
  for (const Row& row : all) {
    std::vector<std::string> cells(columns, " ");
    for (const TimelineSpan* span : row.spans) {
      const Work work = work_of(span->op);
      used.insert(work);
      const size_t from = column(span->start), to = column(span->end);
      std::string label = span->microbatch >= 0 ? std::to_string(span->microbatch) : "";
      if (label.size() > to - from)
        label.clear();
      for (size_t c = from; c < to; ++c)
        cells[c] = c - from < label.size() ? std::string(1, label[c - from]) : shade(work);
    }
    std::string line = fmt::format("{:<{}}  ", row.name, names);
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
