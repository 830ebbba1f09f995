#include "examples/models/rows.h"

#include "compiler/frontend/infer.h"
#include "examples/models/random.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/serialize.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>

namespace piper::models {

namespace {

const RowType& type_of(const std::vector<RowType>& inputs, const std::string& name) {
  return *std::find_if(inputs.begin(), inputs.end(),
                       [&](const RowType& input) { return input.input == name; });
}

} // namespace

Result<DataSource> saved_rows(const std::string& path, const std::vector<RowType>& inputs,
                              int64_t batch, bool holdout) {
  const std::string where = fmt::format("data '{}'", path);
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return user_error("the file cannot be read", where, "give one that torch.save wrote");
  auto rows = std::make_shared<std::map<std::string, at::Tensor>>();
  try {
    const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
    for (const auto& item : torch::pickle_load(bytes).toGenericDict())
      rows->emplace(item.key().toStringRef(), item.value().toTensor());
  } catch (const std::exception& error) {
    return user_error(fmt::format("it is no dictionary of tensors: {}", first_line(error)), where,
                      "save one with torch.save({\"name of an input\": tensor, …}, path)");
  }
  int64_t count = -1;
  for (const RowType& input : inputs) {
    const auto found = rows->find(input.input);
    if (found == rows->end())
      return user_error(fmt::format("it has no tensor '{}'", input.input), where,
                        "each input of the model needs one");
    at::Tensor& tensor = found->second;
    if (tensor.dim() == 0 || tensor.sizes().slice(1) != at::IntArrayRef(input.shape))
      return user_error(
          fmt::format("the tensor '{}' is [{}]", input.input, fmt::join(tensor.sizes(), ",")),
          where, fmt::format("it must be rows of [{}]", fmt::join(input.shape, ",")));
    if (count >= 0 && tensor.size(0) != count)
      return user_error(fmt::format("the tensor '{}' has {} rows, another one {}", input.input,
                                    tensor.size(0), count),
                        where);
    count = tensor.size(0);
    tensor = tensor.to(input.dtype).contiguous();
  }
  const int64_t held_out = holdout ? count / 10 : 0, kept = count - held_out;
  if (kept < 1 || (holdout && held_out < 1))
    return user_error(fmt::format("its {} rows are too few", count), where);
  return DataSource([=](const BatchRequest& request) {
    if (request.held_out && !holdout)
      throw std::invalid_argument("no rows are held out for evaluation: set `holdout`");
    const int64_t begin = request.held_out ? kept : 0, size = request.held_out ? held_out : kept;
    const at::Tensor number =
        at::arange(request.rows) + (request.iteration * batch + request.first_row);
    return rows->at(request.input).index_select(0, number.remainder(size) + begin);
  });
}

DataSource random_rows(const std::vector<RowType>& inputs, uint64_t seed) {
  return [=](const BatchRequest& request) {
    const RowType& type = type_of(inputs, request.input);
    std::vector<int64_t> shape = type.shape;
    shape.insert(shape.begin(), request.rows);
    at::Tensor out = at::empty(shape, at::kDouble);
    double* to = out.data_ptr<double>();
    const int64_t size = request.rows > 0 ? out.numel() / request.rows : 0;
    const uint64_t stream = mix(request.held_out ? ~seed : seed) ^ fnv1a64(request.input);
    const uint64_t iteration_key = mix(stream + static_cast<uint64_t>(request.iteration));
    for (int64_t r = request.first_row; r < request.first_row + request.rows; ++r) {
      const uint64_t key = mix(iteration_key + static_cast<uint64_t>(r));
      for (int64_t k = 0; k < size; ++k)
        *to++ = uniform(key, static_cast<uint64_t>(k));
    }
    return c10::isFloatingType(type.dtype)
               ? (2 * out - 1).to(type.dtype)
               : (out * static_cast<double>(type.below)).floor().to(type.dtype);
  };
}

} // namespace piper::models
