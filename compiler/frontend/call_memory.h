// What a call needs of memory, found by running it as a device does and counting every allocation.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

namespace piper {

/// Runs the call on the CPU with 2 and with 3 rows of zeros: forward without gradients, forward and
/// backward, forward and the two halves of the backward. Bytes are taken to be affine in the rows,
/// moment by moment; what depends on the values themselves is not seen. `module` gets gradients;
/// `call` needs its inputs and outputs, which are values of `spec`. Errors are User: what the
/// backward throws.
Result<ir::CallMemory> measure_memory(const BuiltModule& module, const ir::ModelCall& call,
                                      const ir::ModelSpec& spec);

} // namespace piper
