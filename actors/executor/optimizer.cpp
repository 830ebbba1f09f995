// Built with -ffp-contract=off: a fused multiply-add in the vector loop and none in its remainder
// would make an element's bits depend on its position.
#include "actors/executor/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

// One clone a vector width, chosen when the program is loaded. Sanitizers aren't ready by then.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define PIPER_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define PIPER_VECTOR_CLONES
#endif

namespace piper::executor {
namespace {

template <class T>
[[gnu::always_inline]] inline void
adamw_loop(const OptimizerSpec& spec, const UpdateStep& step, T* __restrict param,
           T* __restrict grad, T* __restrict moment1, T* __restrict moment2, int64_t count) {
  const double correction1 = 1 - std::pow(spec.beta1, step.step);
  const double correction2 = 1 - std::pow(spec.beta2, step.step);
  const T factor = static_cast<T>(step.grad_factor);
  const T keep = static_cast<T>(1 - step.lr * spec.weight_decay);
  const T weight1 = static_cast<T>(1 - spec.beta1);
  const T beta2 = static_cast<T>(spec.beta2);
  const T weight2 = static_cast<T>(1 - spec.beta2);
  const T root2 = static_cast<T>(std::sqrt(correction2));
  const T eps = static_cast<T>(spec.eps);
  const T rate = static_cast<T>(-(step.lr / correction1));
  // A lerp from the nearer end, as PyTorch does it.
  const bool near = std::abs(weight1) < T(0.5);
  const T towards = near ? weight1 : weight1 - 1;
  for (int64_t i = 0; i < count; ++i) {
    const T g = grad[i] * factor;
    const T m = (near ? moment1[i] : g) + towards * (g - moment1[i]);
    const T v = moment2[i] * beta2 + weight2 * g * g;
    moment1[i] = m;
    moment2[i] = v;
    param[i] = param[i] * keep + rate * m / (std::sqrt(v) / root2 + eps);
    grad[i] = 0;
  }
}

template <class T>
[[gnu::always_inline]] inline void sgd_loop(const OptimizerSpec& spec, const UpdateStep& step,
                                            T* __restrict param, T* __restrict grad,
                                            T* __restrict moment1, int64_t count) {
  const T factor = static_cast<T>(step.grad_factor);
  const T decay = static_cast<T>(spec.weight_decay);
  const T momentum = static_cast<T>(spec.momentum);
  const T rate = static_cast<T>(-step.lr);
  if (moment1) {
    for (int64_t i = 0; i < count; ++i) {
      moment1[i] = moment1[i] * momentum + (grad[i] * factor + param[i] * decay);
      param[i] += rate * moment1[i];
      grad[i] = 0;
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      param[i] += rate * (grad[i] * factor + param[i] * decay);
      grad[i] = 0;
    }
  }
}

template <class T>
[[gnu::always_inline]] inline double squares_loop(const T* __restrict data, int64_t count) {
  constexpr int64_t kBlock = 4096, kLanes = 16;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const T* block = data + begin;
    double lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int64_t k = 0; k < kLanes; ++k)
        lanes[k] += static_cast<double>(block[i + k]) * static_cast<double>(block[i + k]);
    for (; i < n; ++i)
      lanes[i % kLanes] += static_cast<double>(block[i]) * static_cast<double>(block[i]);
    double sum = 0;
    for (double lane : lanes)
      sum += lane;
    total += sum;
  }
  return total;
}

} // namespace

PIPER_VECTOR_CLONES void adamw(const OptimizerSpec& spec, const UpdateStep& step, float* param,
                               float* grad, float* moment1, float* moment2, int64_t count) {
  adamw_loop(spec, step, param, grad, moment1, moment2, count);
}
PIPER_VECTOR_CLONES void adamw(const OptimizerSpec& spec, const UpdateStep& step, double* param,
                               double* grad, double* moment1, double* moment2, int64_t count) {
  adamw_loop(spec, step, param, grad, moment1, moment2, count);
}
PIPER_VECTOR_CLONES void sgd(const OptimizerSpec& spec, const UpdateStep& step, float* param,
                             float* grad, float* moment1, int64_t count) {
  sgd_loop(spec, step, param, grad, moment1, count);
}
PIPER_VECTOR_CLONES void sgd(const OptimizerSpec& spec, const UpdateStep& step, double* param,
                             double* grad, double* moment1, int64_t count) {
  sgd_loop(spec, step, param, grad, moment1, count);
}
PIPER_VECTOR_CLONES double sum_of_squares(const float* data, int64_t count) {
  return squares_loop(data, count);
}
PIPER_VECTOR_CLONES double sum_of_squares(const double* data, int64_t count) {
  return squares_loop(data, count);
}

double OptimizerSpec::lr_at(int64_t iteration) const {
  if (iteration < warmup)
    return lr * static_cast<double>(iteration + 1) / static_cast<double>(warmup);
  if (decay == 0)
    return lr;
  if (iteration >= decay)
    return min_lr;
  double done = static_cast<double>(iteration - warmup) / static_cast<double>(decay - warmup);
  return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

std::vector<ir::StateKind> OptimizerSpec::state() const {
  if (kind == Kind::AdamW)
    return {ir::StateKind::Moment1, ir::StateKind::Moment2, ir::StateKind::Step};
  if (momentum != 0)
    return {ir::StateKind::Moment1};
  return {};
}

} // namespace piper::executor
