// A timeline: what devices did when, as the simulator foretells it or as a session measured it.
#pragma once

#include "ir/ids.h"
#include "ir/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace piper::ir {

/// An instruction on its stream. Seconds from Timeline::origin.
struct TimelineSpan {
  std::string name; ///< as PlanSet::name
  Opcode op = Opcode::Input;
  int32_t microbatch = -1; ///< -1: of the iteration
  double start = 0, end = 0;
};

/// A stream of a device, or of `count` devices that do the same.
struct TimelineLane {
  DeviceIndex device = 0;
  uint32_t count = 1;
  std::string stream;
  std::vector<TimelineSpan> spans; ///< by their starts; in a stream they don't overlap
};

struct TimelineMessage {
  uint32_t from = 0, to = 0; ///< lanes
  double start = 0, end = 0;
};

struct Timeline {
  int64_t origin = 0; ///< nanoseconds since 1970 (UTC) of time 0; 0 where it is simulated
  std::vector<TimelineLane> lanes;       ///< by device and stream
  std::vector<TimelineMessage> messages; ///< none where it was measured

  /// Puts the other's lanes behind these, on one axis. Clocks of machines differ by what their
  /// synchronisation leaves.
  void append(Timeline other);
  double end() const; ///< of the last span
};

} // namespace piper::ir
