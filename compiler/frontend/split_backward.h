// Backward for inputs and for weights apart. Neither repeats the other's work: the first runs the
// whole backward but for what leads to weights alone, and keeps the gradient of each place where
// it left that out; the second goes on from there. Source of the idea: zero-bubble pipelines
// (arXiv 2401.10241).
#pragma once

#include "compiler/frontend/autograd.h"

namespace piper {

/// Gradients of `leaves`, left in their .grad, given those of `roots`; gradients of parameters of
/// one dimension are added to at once, since their sums are cheap and would keep an activation's
/// worth of memory alive. What the other parameters need goes to `deferred`; activations that they
/// don't need are freed on the way.
void backward_inputs(const torch::autograd::edge_list& roots,
                     const torch::autograd::variable_list& gradients,
                     const std::vector<at::Tensor>& leaves, ChunkContext& deferred);

/// Adds to the gradients of the parameters that `deferred` is for, and clears it.
void backward_weights(ChunkContext& deferred);

} // namespace piper
