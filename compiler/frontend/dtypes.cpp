#include "compiler/frontend/dtypes.h"

#include <array>
#include <utility>

namespace piper {

namespace {
constexpr std::array<std::pair<c10::ScalarType, ir::DType>, 8> kTypes{{
    {c10::kFloat, ir::DType::F32},
    {c10::kDouble, ir::DType::F64},
    {c10::kHalf, ir::DType::F16},
    {c10::kBFloat16, ir::DType::BF16},
    {c10::kLong, ir::DType::I64},
    {c10::kInt, ir::DType::I32},
    {c10::kByte, ir::DType::U8},
    {c10::kBool, ir::DType::Bool},
}};
} // namespace

std::optional<ir::DType> to_dtype(c10::ScalarType type) {
  for (auto [scalar, dtype] : kTypes)
    if (scalar == type)
      return dtype;
  return std::nullopt;
}

c10::ScalarType to_scalar_type(ir::DType dtype) {
  for (auto [scalar, known] : kTypes)
    if (known == dtype)
      return scalar;
  return c10::ScalarType::Undefined;
}

} // namespace piper
