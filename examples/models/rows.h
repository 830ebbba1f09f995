// Data sources for any model: rows of tensors that Python saved, and random rows.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace piper::models {

/// What a model reads.
struct RowType {
  std::string input;
  std::vector<int64_t> shape; ///< of one row
  c10::ScalarType dtype;
  int64_t below = 256; ///< limit of random integers, which are 0 or more
};

/// The rows of the dictionary, from an input's name to its tensor, that torch.save wrote to `path`.
/// Row r of iteration i is row (i * batch + r) % n of the file's n. With `holdout` the last tenth
/// is for evaluation alone. User errors: no such file, no such dictionary, an input that is missing
/// or has another shape, different numbers of rows. Held-out rows without `holdout` throw
/// std::invalid_argument.
Result<DataSource> saved_rows(const std::string& path, const std::vector<RowType>& inputs,
                              int64_t batch, bool holdout);

/// Element k of row r is a function of (seed, iteration, r, input, k): uniform in [-1, 1), or an
/// integer below the input's limit. Held-out rows are other ones.
DataSource random_rows(const std::vector<RowType>& inputs, uint64_t seed);

} // namespace piper::models
