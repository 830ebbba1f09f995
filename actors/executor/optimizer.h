// The optimizers on a flat range of a bucket. An element's result depends on that element alone,
// not on where the range begins or how long it is, so every layout computes the same bits.
#pragma once

#include "actors/executor/device.h"

#include <cstdint>

namespace piper::executor {

/// What one update uses, the same for every element.
struct UpdateStep {
  double lr = 0;
  double step = 1;        ///< updates of this bucket so far, this one included
  double grad_factor = 1; ///< of clipping
};

/// AdamW on `count` elements, by the formulas and in the order of PyTorch's fused kernel. Clears
/// `grad` in the same pass.
void adamw(const OptimizerSpec& spec, const UpdateStep& step, float* param, float* grad,
           float* moment1, float* moment2, int64_t count);
void adamw(const OptimizerSpec& spec, const UpdateStep& step, double* param, double* grad,
           double* moment1, double* moment2, int64_t count);

/// SGD; `moment1` is the momentum buffer, null if `spec.momentum` is 0. Clears `grad`.
void sgd(const OptimizerSpec& spec, const UpdateStep& step, float* param, float* grad,
         float* moment1, int64_t count);
void sgd(const OptimizerSpec& spec, const UpdateStep& step, double* param, double* grad,
         double* moment1, int64_t count);

/// In double, added in blocks of a fixed size.
double sum_of_squares(const float* data, int64_t count);
double sum_of_squares(const double* data, int64_t count);

} // namespace piper::executor
