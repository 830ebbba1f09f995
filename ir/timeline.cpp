#include "ir/timeline.h"

#include <algorithm>
#include <iterator>

namespace piper::ir {

namespace {
void shift(Timeline& timeline, double seconds) {
  for (TimelineLane& lane : timeline.lanes)
    for (TimelineSpan& span : lane.spans) {
      span.start += seconds;
      span.end += seconds;
    }
  for (TimelineMessage& message : timeline.messages) {
    message.start += seconds;
    message.end += seconds;
  }
}
} // namespace

void Timeline::append(Timeline other) {
  if (lanes.empty())
    origin = other.origin;
  const int64_t first = std::min(origin, other.origin);
  shift(*this, 1e-9 * static_cast<double>(origin - first));
  shift(other, 1e-9 * static_cast<double>(other.origin - first));
  origin = first;
  const auto offset = static_cast<uint32_t>(lanes.size());
  for (TimelineMessage& message : other.messages)
    messages.push_back({message.from + offset, message.to + offset, message.start, message.end});
  std::move(other.lanes.begin(), other.lanes.end(), std::back_inserter(lanes));
}

double Timeline::end() const {
  double last = 0;
  for (const TimelineLane& lane : lanes)
    for (const TimelineSpan& span : lane.spans)
      last = std::max(last, span.end);
  return last;
}

} // namespace piper::ir
