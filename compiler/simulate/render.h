// Pictures of a simulation.
#pragma once

#include "compiler/simulate/simulate.h"

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

/// A row of a picture: the spans of one stream that take time, by their starts. Streams without any
/// have no lane.
struct Lane {
  uint32_t device = 0; ///< index into Simulation::devices
  uint32_t stream = 0;
  std::string name; ///< "device 0 compute", "devices 0 +3 compute"
  std::vector<const Span*> spans;
};
std::vector<Lane> lanes(const Simulation& simulation, const ir::PlanSet& plans);
const ir::Instruction& instruction_of(const Simulation& simulation, const ir::PlanSet& plans,
                                      const Span& span);
/// "2.50 ms"
std::string format_seconds(double seconds);

/// For a terminal: a line a lane, `width` columns of time. Each span begins with its microbatch and
/// goes on in the shade of its kind, as a last line explains.
std::string render_terminal(const Simulation& simulation, const ir::PlanSet& plans, int width);

/// An SVG document with a legend and an axis; hovering a span names it. `model` may be null.
std::string render_svg(const Simulation& simulation, const ir::PlanSet& plans,
                       const ir::ModelSpec* model, std::string_view title);

/// The Trace Event Format of chrome://tracing and ui.perfetto.dev: a process a device, a thread a
/// stream, an arrow a message. `model` may be null.
std::string render_trace(const Simulation& simulation, const ir::PlanSet& plans,
                         const ir::ModelSpec* model);

} // namespace piper::compiler
