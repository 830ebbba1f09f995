// Pictures of a timeline, a simulated or a measured one.
#pragma once

#include "ir/timeline.h"

#include <string>
#include <string_view>
#include <vector>

namespace piper::compiler {

/// What a span is shown as.
enum class Work : uint8_t {
  Forward,
  Backward,
  BackwardInput,
  BackwardWeight,
  Communication,
  Update,
  Other
};
const char* to_string(Work work); ///< "forward", "backward for inputs", …
Work work_of(ir::Opcode op);

/// A row of a picture: the spans of a lane that take time. Lanes without any have no row.
struct Row {
  ir::DeviceIndex device = 0;
  std::string name; ///< "device 0 compute", "devices 0 +3 compute"
  std::vector<const ir::TimelineSpan*> spans;
};
std::vector<Row> rows(const ir::Timeline& timeline);
/// "2.50 ms"
std::string format_seconds(double seconds);

/// For a terminal: a line a row, `width` columns of time. Each span begins with its microbatch and
/// goes on in the shade of its kind, as a last line explains.
std::string render_terminal(const ir::Timeline& timeline, int width);

/// An SVG document with a legend and an axis; hovering a span names it.
std::string render_svg(const ir::Timeline& timeline, std::string_view title);

/// The Trace Event Format of chrome://tracing and ui.perfetto.dev: a process a device, a thread a
/// stream, an arrow a message.
std::string render_trace(const ir::Timeline& timeline);

} // namespace piper::compiler
