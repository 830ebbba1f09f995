// Element types: LibTorch's and the IR's.
#pragma once

#include "ir/tensor_type.h"

#include <c10/core/ScalarType.h>

#include <optional>

namespace piper {

/// None for a type that the IR does not know (complex, quantized, …).
std::optional<ir::DType> to_dtype(c10::ScalarType type);
c10::ScalarType to_scalar_type(ir::DType dtype);

} // namespace piper
