#include "compiler/frontend/infer.h"

#include "compiler/frontend/dtypes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

namespace piper {

namespace {

constexpr int64_t kFewRows = 2, kMoreRows = 3;

std::string shapes_of(const std::vector<TracedTensor>& inputs) {
  std::string text;
  for (const TracedTensor& input : inputs)
    text += (text.empty() ? "" : ", ") + input.type.to_string();
  return text;
}

/// The buffers' contents and versions: some operators write without counting a version.
class BufferWatch {
public:
  explicit BufferWatch(const torch::nn::Module* module) {
    if (module)
      for (const auto& item : module->named_buffers())
        entries_.push_back(
            {item.key(), item.value(), item.value().clone(), item.value()._version()});
  }
  /// The name of one that was written to; empty if none was.
  std::string written() const {
    for (const Entry& entry : entries_)
      if (entry.tensor._version() != entry.version || !entry.tensor.equal(entry.before))
        return entry.name;
    return {};
  }

private:
  struct Entry {
    std::string name;
    at::Tensor tensor, before;
    int64_t version;
  };
  std::vector<Entry> entries_;
};

Result<Tensors> run(const BuiltModule& module, const std::vector<TracedTensor>& inputs,
                    std::optional<size_t> counts, int64_t rows) {
  torch::AutoGradMode with_grad(true);
  Tensors tensors;
  std::vector<int64_t> versions;
  for (const TracedTensor& input : inputs) {
    tensors.push_back(at::zeros(input.type.shape(rows), to_scalar_type(input.type.dtype))
                          .requires_grad_(input.differentiable));
    versions.push_back(tensors.back()._version());
  }
  if (counts) // all rows go to the first expert
    for (size_t i = 0; i < tensors.size(); ++i)
      if (i != *counts && inputs[i].type.batch_dim == 0) {
        tensors[*counts].view(-1)[0] = tensors[i].size(0);
        versions[*counts] = tensors[*counts]._version();
        break;
      }
  BufferWatch buffers(module.module.get());
  Tensors outputs;
  try {
    outputs = module.forward(tensors);
  } catch (const std::exception& error) {
    return user_error(fmt::format("it cannot take {}: {}", shapes_of(inputs), first_line(error)),
                      {}, fmt::format("it was tried with {} rows", rows));
  }
  if (std::string name = buffers.written(); !name.empty())
    return user_error(fmt::format("it changes its buffer '{}'", name), {},
                      "training must not keep state outside of parameters: the result would depend "
                      "on the strategy");
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i]._version() != versions[i])
      return user_error(fmt::format("it writes to its input {}", i), {},
                        "other calls may read the same value: write to a copy");
  if (outputs.empty())
    return user_error("it returns no tensor");
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined())
      return user_error(fmt::format("its output {} is an undefined tensor", i));
  return outputs;
}

Result<ir::TensorType> type_of(const at::Tensor& few, const at::Tensor& more, size_t index) {
  ir::TensorType type;
  auto dtype = to_dtype(few.scalar_type());
  if (!dtype)
    return user_error(fmt::format("its output {} has the unsupported element type {}", index,
                                  c10::toString(few.scalar_type())));
  type.dtype = *dtype;
  const std::string change =
      fmt::format("[{}] with {} rows and [{}] with {}", fmt::join(few.sizes(), ","), kFewRows,
                  fmt::join(more.sizes(), ","), kMoreRows);
  if (few.dim() != more.dim())
    return user_error(fmt::format("its output {} has shape {}", index, change), {},
                      "the number of dimensions must not depend on the number of rows");
  for (int64_t d = 0; d < few.dim(); ++d) {
    int64_t a = few.size(d), b = more.size(d);
    type.dims.push_back(a);
    if (a == b)
      continue;
    if (a * kMoreRows != b * kFewRows)
      return user_error(fmt::format("dimension {} of its output {} is no multiple of the batch "
                                    "rows: shape {}",
                                    d, index, change),
                        {}, "an extent must be fixed, or grow with the rows from 0");
    if (type.batch_dim >= 0)
      return user_error(fmt::format("dimensions {} and {} of its output {} both grow with the "
                                    "batch rows: shape {}",
                                    type.batch_dim, d, index, change),
                        {}, "rows must not be paired with each other: a microbatch has only some");
    type.batch_dim = static_cast<int>(d);
    type.dims.back() = a / kFewRows;
  }
  return type;
}

} // namespace

std::string first_line(const std::exception& error) {
  auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

Result<std::vector<TracedTensor>> infer_outputs(const BuiltModule& module,
                                                const std::vector<TracedTensor>& inputs,
                                                std::optional<size_t> counts) {
  PIPER_TRY(Tensors few, run(module, inputs, counts, kFewRows));
  PIPER_TRY(Tensors more, run(module, inputs, counts, kMoreRows));
  if (few.size() != more.size())
    return user_error(fmt::format("it returns {} tensors for {} rows and {} for {}", few.size(),
                                  kFewRows, more.size(), kMoreRows));
  std::vector<TracedTensor> outputs;
  for (size_t i = 0; i < few.size(); ++i) {
    PIPER_TRY(ir::TensorType type, type_of(few[i], more[i], i));
    outputs.push_back({std::move(type), few[i].requires_grad()});
  }
  return outputs;
}

} // namespace piper
