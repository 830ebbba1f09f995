#include "actors/executor/instructions.h"
#include "compiler/frontend/split_backward.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace piper::executor {

Result<void> InputInstruction::execute() {
  request.iteration = state->iteration;
  at::Tensor rows = (*data)(request);
  if (!rows.defined() || rows.scalar_type() != to_scalar_type(type.dtype) || rows.sizes() != shape)
    return user_error(fmt::format("the data source gave {} for input '{}', which is {}[{}]",
                                  describe(rows), request.input, ir::to_string(type.dtype),
                                  fmt::join(shape, ",")));
  *target = std::move(rows);
  return {};
}

Result<void> ForwardInstruction::execute() {
  for (ForwardChunk& chunk : chunks)
    PIPER_CHECK_OK(chunk.run());
  for (at::Tensor& internal : internals)
    internal.reset();
  return {};
}

void ForwardInstruction::clear() noexcept {
  for (ForwardChunk& chunk : chunks)
    chunk.clear();
  for (at::Tensor& internal : internals)
    internal.reset();
}

Result<void> SeedInstruction::execute() {
  *target = scale;
  return {};
}

Result<void> BackwardInstruction::execute() {
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
    chunk->run();
  for (at::Tensor& internal : internals)
    internal.reset();
  return {};
}

Result<void> OffloadInstruction::execute() {
  for (ChunkContext* context : contexts)
    if (pool)
      context->move_out([&](int64_t bytes) { return pool->empty(bytes, at::kByte); });
    else
      context->move_in();
  for (const Move& move : tensors) {
    const at::Tensor& source = *move.source;
    at::Tensor target = pool
                            ? pool->empty(source.numel(), source.scalar_type()).view(source.sizes())
                            : at::empty(source.sizes(), source.options());
    target.copy_(source);
    *move.target = std::move(target);
  }
  return {};
}

void BackwardInstruction::clear() noexcept {
  for (BackwardChunk& chunk : chunks)
    for (at::Tensor& gradient : chunk.gradients)
      gradient.reset();
  for (at::Tensor& internal : internals)
    internal.reset();
}

Result<void> BackwardWeightInstruction::execute() {
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk)
    backward_weights(**chunk);
  return {};
}

Result<void> AddInstruction::execute() {
  *target = sum(parts);
  return {};
}

Result<void> LossInstruction::execute() {
  state->losses[microbatch] = loss->item<double>();
  return {};
}

} // namespace piper::executor
