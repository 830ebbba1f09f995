#include "actors/executor/instructions.h"

#include <ATen/Parallel.h>

#include <cstring>

namespace piper::executor {
namespace {

constexpr int64_t kGrain = 1 << 16; ///< elements a thread updates at least

template <class T> T* at_element(const FlatRange& range, int64_t i) {
  return range.data ? reinterpret_cast<T*>(range.data) + i : nullptr;
}

template <class T> void update(const UpdateInstruction& u, const UpdateStep& step) {
  const OptimizerSpec& spec = *u.optimizer;
  at::parallel_for(0, u.owned_param.count, kGrain, [&](int64_t begin, int64_t end) {
    T* param = at_element<T>(u.owned_param, begin);
    T* grad = at_element<T>(u.grad, u.owned_begin + begin);
    T* moment1 = at_element<T>(u.moment1, begin);
    if (spec.kind == OptimizerSpec::Kind::AdamW)
      adamw(spec, step, param, grad, moment1, at_element<T>(u.moment2, begin), end - begin);
    else
      sgd(spec, step, param, grad, moment1, end - begin);
  });
}

} // namespace

Result<void> UpdateInstruction::execute() {
  if (!state->committed())
    state->updated_early = true;
  UpdateStep now{optimizer->lr_at(state->iteration), step ? ++*step : 1, state->grad_factor};
  if (grad.dtype == ir::DType::F64)
    update<double>(*this, now);
  else
    update<float>(*this, now);
  // The gradients of ranges that other ranks own.
  const int64_t size = ir::size_of(grad.dtype), end = owned_begin + owned_param.count;
  std::memset(grad.data, 0, static_cast<size_t>(owned_begin * size));
  std::memset(grad.data + end * size, 0, static_cast<size_t>((grad.count - end) * size));
  return {};
}

Result<void> ReleaseInstruction::execute() {
  bucket->close(ir::StateKind::Param);
  return {};
}

Result<void> ZeroGradsInstruction::execute() {
  bucket->open(ir::StateKind::Grad, *memory);
  const FlatRange range = bucket->whole(ir::StateKind::Grad);
  std::memset(range.data, 0, static_cast<size_t>(range.bytes()));
  return {};
}

Result<void> CopyStateInstruction::execute() {
  std::memcpy(target.data, source.data, static_cast<size_t>(source.bytes()));
  return {};
}

} // namespace piper::executor
