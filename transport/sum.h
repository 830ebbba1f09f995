// Sums of buffers in rank order, the one arithmetic of the collectives.
#pragma once

#include "ir/tensor_type.h"

#include <cstddef>
#include <span>

namespace piper::transport {

/// Whether collectives can add this element type: F32, F64 and I64.
bool can_sum(ir::DType dtype);

/// Elements [first, first + count) of each buffer of `to` become from[0] + from[1] + …, added in
/// that order. A buffer of `to` may be one of `from`; otherwise they don't overlap. Never
/// allocates.
void sum(std::span<void* const> to, std::span<void* const> from, size_t first, size_t count,
         ir::DType dtype);

} // namespace piper::transport
