#include "ir/tensor_type.h"

#include "ir/text.h"

#include <array>

namespace piper::ir {

namespace {
struct DTypeInfo {
  const char* name;
  int64_t size;
  bool floating;
};
constexpr std::array<DTypeInfo, 8> kDTypes = {{{"f32", 4, true},
                                               {"f64", 8, true},
                                               {"f16", 2, true},
                                               {"bf16", 2, true},
                                               {"i64", 8, false},
                                               {"i32", 4, false},
                                               {"u8", 1, false},
                                               {"bool", 1, false}}};
const DTypeInfo& info(DType dtype) {
  return kDTypes[static_cast<size_t>(dtype)];
}
} // namespace

const char* to_string(DType dtype) {
  return info(dtype).name;
}
int64_t size_of(DType dtype) {
  return info(dtype).size;
}
bool is_floating(DType dtype) {
  return info(dtype).floating;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (size_t i = 0; i < kDTypes.size(); ++i)
    if (text == kDTypes[i].name)
      return static_cast<DType>(i);
  return std::nullopt;
}

std::vector<int64_t> TensorType::shape(int64_t rows) const {
  std::vector<int64_t> out = dims;
  if (batch_dim >= 0)
    out[static_cast<size_t>(batch_dim)] *= rows;
  return out;
}

int64_t TensorType::numel(int64_t rows) const {
  int64_t n = batch_dim >= 0 ? rows : 1;
  for (int64_t extent : dims)
    n *= extent;
  return n;
}

std::string TensorType::to_string() const {
  std::string out = ir::to_string(dtype);
  out += '[';
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i)
      out += ',';
    bool batch = static_cast<int>(i) == batch_dim;
    if (!batch || dims[i] != 1)
      text::append_int(out, dims[i]);
    if (batch)
      out += dims[i] == 1 ? "B" : "*B";
  }
  return out + ']';
}

Result<TensorType> TensorType::parse(std::string_view text) {
  return text::parsing(text, [](text::Reader& in) {
    in.next_line();
    TensorType type = text::read_type(in);
    in.end_line();
    return type;
  });
}

namespace text {

DType read_dtype(Reader& in) {
  std::string_view word = in.bare("an element type");
  if (auto dtype = parse_dtype(word))
    return *dtype;
  std::string known;
  for (const DTypeInfo& each : kDTypes)
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  in.fail("unknown element type \"" + std::string(word) + "\"", "known: " + known);
}

TensorType read_type(Reader& in) {
  TensorType type;
  type.dtype = read_dtype(in);
  in.expect("[");
  if (in.accept("]"))
    return type;
  do {
    bool batch = in.accept("B");
    type.dims.push_back(batch ? 1 : in.integer("an extent"));
    if (type.dims.back() < 0)
      in.fail("an extent is negative: " + std::to_string(type.dims.back()));
    if (!batch && in.accept("*")) {
      in.expect("B");
      batch = true;
    }
    if (batch && type.batch_dim >= 0)
      in.fail("two dimensions hold the batch");
    if (batch)
      type.batch_dim = static_cast<int>(type.dims.size()) - 1;
  } while (in.accept(","));
  in.expect("]");
  return type;
}

} // namespace text

} // namespace piper::ir
