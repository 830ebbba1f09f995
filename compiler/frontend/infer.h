// What a module makes of its inputs, found by running it.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <optional>
#include <vector>

namespace piper {

struct TracedTensor {
  ir::TensorType type;
  bool differentiable = false; ///< a gradient flows back to it
};

/// Runs `module` on the CPU with 2 and with 3 batch rows of zeros. An extent that is the same in
/// both is fixed; one that grows with the rows is the batch dimension. Refused, as User errors:
/// what `forward` throws (its first line, with the shapes of the inputs), an extent that is no
/// multiple of the rows, two that are, a type the IR does not know, an input or a buffer that is
/// written to. `counts`: the input that says how many rows of the others go to each expert.
Result<std::vector<TracedTensor>> infer_outputs(const BuiltModule& module,
                                                const std::vector<TracedTensor>& inputs,
                                                std::optional<size_t> counts = std::nullopt);

/// The first line of an exception's message, without LibTorch's backtrace.
std::string first_line(const std::exception& error);

} // namespace piper
