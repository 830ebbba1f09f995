// What a call needs of memory beside its inputs and outputs: a property of the call, measured when
// the model is built (compiler/frontend/call_memory.h), from which memory_bound.h foretells a
// device's peak.
#pragma once

#include "ir/ids.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace piper::ir {

/// Bytes at a number of batch rows.
struct RowBytes {
  int64_t fixed = 0, per_row = 0;
  int64_t at(int64_t rows) const { return std::max<int64_t>(0, fixed + per_row * rows); }
  bool operator==(const RowBytes&) const = default;
};

/// The most of some moments, each of which is the largest at some number of rows.
struct PeakBytes {
  std::vector<RowBytes> moments;
  int64_t at(int64_t rows) const {
    int64_t most = 0;
    for (const RowBytes& moment : moments)
      most = std::max(most, moment.at(rows));
    return most;
  }
  bool operator==(const PeakBytes&) const = default;
};

/// All zero and empty where it is not known; then bounds leave it out. Peaks count what is live
/// beyond what was so before the pass: of what it makes, outputs too; less what it has let go of.
struct CallMemory {
  RowBytes saved;             ///< made by its forward and kept for its backward, beside `keeps`
  std::vector<ValueId> keeps; ///< inputs and outputs that its forward keeps for its backward
  RowBytes deferred; ///< that its backward for inputs leaves to the one for weights, beside
  std::vector<ValueId> defers;           ///< … inputs and outputs, and
  std::vector<ValueId> defers_gradients; ///< … gradients of them
  PeakBytes forward;                     ///< in training
  PeakBytes inference;                   ///< where nothing is kept
  PeakBytes backward, backward_input, backward_weight;
  /// What outputs, or the gradients of inputs, keep alive beyond their own size, as views do.
  RowBytes outputs_beyond, gradients_beyond;
  int64_t buffers = 0; ///< of its module
  bool operator==(const CallMemory&) const = default;
};

} // namespace piper::ir
