// What an instruction costs beyond its kernel.
#pragma once

#include "ir/result.h"

#include <cstdint>

namespace piper::executor {

struct DispatchFigures {
  double one_stream_ns = 0;  ///< an instruction that does nothing, in one stream
  double two_streams_ns = 0; ///< the same where each waits for the previous one on another stream
  double allocations = 0;    ///< an instruction, on the stream's and the issuing thread
};

/// Runs plans of `instructions` empty instructions through the interpreter, the best of some
/// rounds. `allocations` reads a counter of the program's operator new; null: not counted.
Result<DispatchFigures> measure_dispatch(int instructions = 10'000,
                                         uint64_t (*allocations)() = nullptr);

} // namespace piper::executor
