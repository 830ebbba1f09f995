// What is known of a tensor before it exists: its element type and its shape as a function of the
// number of batch rows.
#pragma once

#include "ir/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::ir {

enum class DType : uint8_t { F32, F64, F16, BF16, I64, I32, U8, Bool };

const char* to_string(DType dtype); ///< "f32", "i64", …
int64_t size_of(DType dtype);       ///< bytes of one element
bool is_floating(DType dtype);
std::optional<DType> parse_dtype(std::string_view text);

/// A shape whose `batch_dim`-th extent is `dims[batch_dim]` for each batch row; a microbatch of R
/// rows has R * dims[batch_dim] there. `batch_dim` is -1 for a tensor that has no rows
/// (a parameter, a mean loss).
struct TensorType {
  DType dtype = DType::F32;
  std::vector<int64_t> dims;
  int batch_dim = -1;

  int64_t numel(int64_t rows) const;
  int64_t bytes(int64_t rows) const { return numel(rows) * size_of(dtype); }
  std::vector<int64_t> shape(int64_t rows) const;
  /// "f32[B,128,256]", "f32[128*B,256]", "f64[]"
  std::string to_string() const;
  static Result<TensorType> parse(std::string_view text);
  bool operator==(const TensorType&) const = default;
};

} // namespace piper::ir
