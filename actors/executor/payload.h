// Tensors as what the transport sends.
#pragma once

#include "transport/transport.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace piper::executor {

/// A payload over `data`, which `owner` keeps alive. Its token is the owner's implementation.
transport::Payload payload_of(at::Tensor owner, void* data, size_t bytes);
/// The owner of a payload that `payload_of` made, in this process.
at::Tensor owner_of(transport::Payload payload);

} // namespace piper::executor
