#include "compiler/simulate/render.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace piper::compiler {

using namespace ir;

namespace {

// In pixels.
constexpr double kWidth = 1200, kLeft = 170, kRight = 20, kTop = 64, kLane = 22, kThin = 12,
                 kGap = 8, kAxis = 34;

const char* fill(Work work) {
  switch (work) {
  case Work::Forward:
    return "#8ecae6";
  case Work::Backward:
    return "#ffb703";
  case Work::BackwardInput:
    return "#ffd166";
  case Work::BackwardWeight:
    return "#cdb4db";
  case Work::Communication:
    return "#b8b8c8";
  case Work::Update:
    return "#90be6d";
  case Work::Other:
    return "#dddddd";
  }
  return "#000000";
}

std::string escape(std::string_view text) {
  std::string out;
  for (char letter : text)
    switch (letter) {
    case '&':
      out += "&amp;";
      break;
    case '<':
      out += "&lt;";
      break;
    case '>':
      out += "&gt;";
      break;
    case '"':
      out += "&quot;";
      break;
    default:
      out += letter;
    }
  return out;
}

/// 1, 2 or 5 times a power of ten, so that the axis has some eight steps.
double axis_step(double last) {
  const double rough = last / 8, power = std::pow(10, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough)
      return factor * power;
  return 10 * power;
}

} // namespace

std::string render_svg(const Timeline& timeline, std::string_view title) {
  const std::vector<Row> all = rows(timeline);
  double last = 0;
  for (const Row& row : all)
    last = std::max(last, row.spans.back()->end);
  const double scale = last > 0 ? (kWidth - kLeft - kRight) / last : 1;

  std::string body;
  auto out = std::back_inserter(body);
  double y = kTop;
  std::set<Work> used;
  for (size_t r = 0; r < all.size(); ++r) {
    const Row& row = all[r];
    if (r > 0 && all[r - 1].device != row.device)
      y += kGap;
    const bool thin = std::all_of(row.spans.begin(), row.spans.end(), [&](const auto* span) {
      return work_of(span->op) == Work::Communication;
    });
    const double height = thin ? kThin : kLane;
    fmt::format_to(out, "<text x=\"{:.0f}\" y=\"{:.1f}\" class=\"lane\">{}</text>\n", kLeft - 8,
                   y + height / 2, escape(row.name));
    fmt::format_to(out,
                   "<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" "
                   "class=\"idle\"/>\n",
                   kLeft, y, last * scale, height);
    for (const TimelineSpan* span : row.spans) {
      const Work work = work_of(span->op);
      used.insert(work);
      const double x = kLeft + span->start * scale, width = (span->end - span->start) * scale;
      fmt::format_to(
          out,
          "<g><title>{} · {} to {}</title><rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" "
          "height=\"{:.0f}\" fill=\"{}\"/>",
          escape(span->name), format_seconds(span->start), format_seconds(span->end), x, y, width,
          height, fill(work));
      const std::string label = span->microbatch >= 0 ? std::to_string(span->microbatch) : "";
      if (!thin && !label.empty() && width > 7.0 * static_cast<double>(label.size()))
        fmt::format_to(out, "<text x=\"{:.2f}\" y=\"{:.1f}\" class=\"microbatch\">{}</text>",
                       x + width / 2, y + height / 2, label);
      body += "</g>\n";
    }
    y += height + 2;
  }
  for (double time = 0, step = axis_step(std::max(last, 1e-12)); time <= last * (1 + 1e-9);
       time += step) {
    const double x = kLeft + time * scale;
    fmt::format_to(out,
                   "<line x1=\"{0:.2f}\" y1=\"{1:.1f}\" x2=\"{0:.2f}\" y2=\"{2:.1f}\" "
                   "class=\"tick\"/><text x=\"{0:.2f}\" y=\"{3:.1f}\" class=\"time\">{4}</text>\n",
                   x, y + 2, y + 7, y + 18, format_seconds(time));
  }
  double x = kLeft;
  for (Work work : used) {
    fmt::format_to(out,
                   "<rect x=\"{:.0f}\" y=\"36\" width=\"14\" height=\"14\" fill=\"{}\"/>"
                   "<text x=\"{:.0f}\" y=\"43\" class=\"legend\">{}</text>\n",
                   x, fill(work), x + 19, to_string(work));
    x += 32 + 7 * static_cast<double>(std::string_view(to_string(work)).size());
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<style>text{{dominant-baseline:central;fill:#222}}.lane{{text-anchor:end}}"
      ".microbatch,.time{{text-anchor:middle}}.idle{{fill:#f4f4f4}}.tick{{stroke:#888}}"
      ".title{{font-size:15px}}g rect{{stroke:#fff;stroke-width:.6}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"{2:.0f}\" y=\"18\" class=\"title\">{3}</text>\n{4}</svg>\n",
      kWidth, y + kAxis, kLeft, escape(title), body);
}

} // namespace piper::compiler
