#include "ir/tensor_type.h"

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;

TEST_CASE("a tensor type is a function of the rows") {
  const TensorType type{DType::F32, {128, 256}, 0};
  CHECK(type.shape(3) == std::vector<int64_t>{384, 256});
  CHECK(type.numel(3) == 384 * 256);
  CHECK(type.bytes(3) == 4 * 384 * 256);
  const TensorType scalar{DType::F64, {}, -1};
  CHECK(scalar.numel(7) == 1);
  CHECK(scalar.shape(7).empty());
}

TEST_CASE("tensor types print and parse back") {
  const std::pair<TensorType, const char*> cases[] = {
      {{DType::F32, {1, 128, 256}, 0}, "f32[B,128,256]"},
      {{DType::BF16, {128, 256}, 0}, "bf16[128*B,256]"},
      {{DType::I64, {3, 1}, 1}, "i64[3,B]"},
      {{DType::F64, {}, -1}, "f64[]"},
      {{DType::Bool, {0}, -1}, "bool[0]"},
  };
  for (const auto& [type, text] : cases) {
    CHECK(type.to_string() == text);
    CHECK(*TensorType::parse(text) == type);
  }
  CHECK(*TensorType::parse(" f32[ B , 2 ] ") == TensorType{DType::F32, {1, 2}, 0});
}

TEST_CASE("what is wrong with a tensor type is said") {
  auto error = [](const char* text) { return TensorType::parse(text).error().to_string(); };
  CHECK(error("f33[2]") == "line 1: unknown element type \"f33\"\n"
                           "  known: f32, f64, f16, bf16, i64, i32, u8, bool");
  CHECK(error("f32[B,B]") == "line 1: two dimensions hold the batch");
  CHECK(error("f32[-1]") == "line 1: an extent is negative: -1");
  CHECK(error("f32[2") == "line 1: expected \"]\", found the end of the line");
  CHECK(error("f32[2*C]") == "line 1: expected \"B\", found \"C]\"");
  CHECK(error("f32[2] x") == "line 1: expected the end of the line, found \"x\"");
  CHECK(error("") == "line 0: expected an element type, found the end of the line");
}

TEST_CASE("element types have sizes") {
  CHECK(size_of(DType::F32) == 4);
  CHECK(size_of(DType::F64) == 8);
  CHECK(size_of(DType::BF16) == 2);
  CHECK(size_of(DType::I64) == 8);
  CHECK(size_of(DType::U8) == 1);
  CHECK(is_floating(DType::F16));
  CHECK(!is_floating(DType::I32));
  CHECK(parse_dtype("i32") == DType::I32);
  CHECK(!parse_dtype("f8"));
}
