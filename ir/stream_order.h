// StreamOrder: which instructions of a plan are sure to be done before another one starts, whatever
// the streams' speeds: those before it on its stream, and those that the events it waits for are
// known to come after. Vector clocks over the streams (Fidge 1988, Mattern 1989), in
// O(instructions x streams).
#pragma once

#include "ir/plan.h"

namespace piper::ir {

class StreamOrder {
public:
  /// Of a plan whose events are recorded once and before they are waited for, in issue order, and
  /// whose indices are in range (see `verify`).
  explicit StreamOrder(const Plan& plan);

  /// Whether instruction `a` is done before `b` starts. Never true of one and the same.
  bool before(uint32_t a, uint32_t b) const {
    return reached_[b * streams_ + stream_[a]] > position_[a];
  }
  /// How many instructions of the stream are done before the instruction starts, for certain.
  uint32_t reached(uint32_t instruction, uint32_t stream) const {
    return reached_[instruction * streams_ + stream];
  }
  /// Its place on its stream, from 0.
  uint32_t position(uint32_t instruction) const { return position_[instruction]; }

private:
  size_t streams_;
  std::vector<uint32_t> stream_, position_; ///< of each instruction
  std::vector<uint32_t> reached_;           ///< by instruction and stream
};

} // namespace piper::ir
