#include "ir/stream_order.h"

#include <algorithm>

namespace piper::ir {

StreamOrder::StreamOrder(const Plan& plan)
    : streams_(plan.streams.size()), stream_(plan.instructions.size()),
      position_(plan.instructions.size()), reached_(plan.instructions.size() * streams_) {
  constexpr uint32_t kNone = Id<void>::kNone;
  std::vector<uint32_t> recorder(plan.events, kNone);
  std::vector<uint32_t> last(streams_, kNone), length(streams_);
  for (uint32_t i = 0; i < plan.instructions.size(); ++i) {
    const Instruction& each = plan.instructions[i];
    uint32_t* reached = &reached_[i * streams_];
    auto join = [&](uint32_t before) {
      const uint32_t* theirs = &reached_[before * streams_];
      for (size_t s = 0; s < streams_; ++s)
        reached[s] = std::max(reached[s], theirs[s]);
      reached[stream_[before]] = std::max(reached[stream_[before]], position_[before] + 1);
    };
    if (last[each.stream] != kNone)
      join(last[each.stream]);
    for (EventId event : each.waits)
      join(recorder[event.value]);
    if (each.records)
      recorder[each.records.value] = i;
    stream_[i] = each.stream;
    position_[i] = length[each.stream]++;
    last[each.stream] = i;
  }
}

} // namespace piper::ir
