#include "examples/models/torchscript.h"

#include "compiler/frontend/model_builder.h"
#include "examples/models/torchscript_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <stdexcept>

namespace piper::models {

namespace {

bool is_trained(const torch::jit::Module& module, const std::string& attribute) {
  const size_t slot = module.type()->getAttributeSlot(attribute);
  return module.type()->is_parameter(slot) && module.attr(attribute).toTensor().requires_grad();
}

/// Registers the tensors of `from`, themselves and not copies, where they are in `from`.
void mirror(const torch::jit::Module& from, torch::nn::Module& to) {
  for (const auto& item : from.named_attributes(/*recurse=*/false)) {
    if (item.value.isModule()) {
      auto child = to.register_module(item.name, std::make_shared<torch::nn::Module>());
      mirror(item.value.toModule(), *child);
    } else if (item.value.isTensor() && is_trained(from, item.name)) {
      to.register_parameter(item.name, item.value.toTensor());
    } else if (item.value.isTensor()) {
      to.register_buffer(item.name, item.value.toTensor());
    }
  }
}

/// The interpreter's message tells the lines that led to an error before the error.
std::string reason(const std::string& message) {
  const std::string mark = "RuntimeError: ";
  const size_t at = message.rfind(mark);
  return at == std::string::npos ? message : message.substr(at + mark.size());
}

/// A submodule as a module of LibTorch.
class ScriptModule : public torch::nn::Module {
public:
  ScriptModule(const torch::jit::Module& script, const std::string& method)
      : method_(script.get_method(method)) {
    mirror(script, *this);
  }

  Tensors forward(const Tensors& inputs) {
    // Optimized graphs would hide parameters from split backwards, and sum in orders of their own.
    torch::jit::GraphOptimizerEnabledGuard as_written(false);
    try {
      return tensors(method_({inputs.begin(), inputs.end()}));
    } catch (const c10::Error&) {
      throw;
    } catch (const std::exception& error) {
      throw std::runtime_error(reason(error.what()));
    }
  }

private:
  static Tensors tensors(const torch::jit::IValue& returned) {
    if (returned.isTensor())
      return {returned.toTensor()};
    if (returned.isTensorList())
      return returned.toTensorVector();
    Tensors all;
    if (returned.isTuple())
      for (const auto& element : returned.toTupleRef().elements())
        if (element.isTensor())
          all.push_back(element.toTensor());
    if (all.empty() || all.size() != returned.toTupleRef().elements().size())
      throw std::runtime_error(
          fmt::format("it returns {}, not tensors", returned.type()->annotation_str()));
    return all;
  }

  torch::jit::Method method_;
};

Error in_call(Error error, const std::string& name) {
  error.where = fmt::format("call '{}'", name);
  return error;
}

/// Builds the model call by call.
class Composer {
public:
  Composer(const TorchscriptConfig& config, std::shared_ptr<const TorchscriptFile> file,
           const std::string& name)
      : config_(config), file_(std::move(file)), builder_(name) {
    builder_.dtype(config.dtype);
  }

  Result<Model> compose() {
    for (const RowType& input : config_.inputs) {
      std::vector<int64_t> shape = input.shape;
      shape.insert(shape.begin(), config_.batch);
      const bool floating = c10::isFloatingType(input.dtype);
      values_.insert_or_assign(
          input.input, builder_.input(input.input, shape, floating ? config_.dtype : input.dtype));
    }
    for (const TorchscriptConfig::Call& call : config_.calls) {
      PIPER_TRY(const bool traced, add(call));
      if (!traced)
        return builder_.loss(Value()); // what the builder refused
    }
    tie();
    return loss();
  }

private:
  struct Part {
    ModuleRef<ScriptModule> module;
    std::string method;
  };

  Result<std::vector<Value>> values(const std::vector<std::string>& names) const {
    std::vector<Value> found;
    for (const std::string& name : names) {
      const auto value = values_.find(name);
      if (value == values_.end()) {
        std::vector<std::string> known;
        for (const auto& [each, ignored] : values_)
          known.push_back(each);
        return user_error(fmt::format("there is no value '{}' before it", name), {},
                          fmt::format("there are {}", fmt::join(known, ", ")));
      }
      found.push_back(value->second);
    }
    return found;
  }

  Result<ModuleRef<ScriptModule>> part(const TorchscriptConfig::Call& call) {
    if (auto known = parts_.find(call.module); known != parts_.end()) {
      if (known->second.method != call.method)
        return user_error(
            fmt::format("another call uses '{}' of '{}'", known->second.method, call.module), {},
            "calls of one submodule use one method: make two submodules");
      return known->second.module;
    }
    PIPER_TRY(const torch::jit::Module script, file_->find(call.module));
    if (!script.find_method(call.method)) {
      std::vector<std::string> known;
      for (const auto& method : script.get_methods())
        known.push_back(method.name());
      return user_error(fmt::format("'{}' has no method '{}'", call.module, call.method), {},
                        fmt::format("it has {}", fmt::join(known, ", ")));
    }
    const auto load = [file = file_, path = call.module, method = call.method] {
      return std::make_shared<ScriptModule>(file->load(path), method);
    };
    const std::string name = call.module.empty() ? "module" : call.module;
    const auto module = builder_.module(name, load, call.module);
    parts_.emplace(call.module, Part{module, call.method});
    return module;
  }

  /// False if the builder refused the call.
  Result<bool> add(const TorchscriptConfig::Call& call) {
    const auto inputs = values(call.inputs);
    const auto module = part(call);
    for (const Error* error :
         {inputs.ok() ? nullptr : &inputs.error(), module.ok() ? nullptr : &module.error()})
      if (error)
        return in_call(*error, call.name);
    if (inputs->empty())
      return in_call(
          user_error("it has no inputs", {}, "name inputs of the model or earlier calls"),
          call.name);
    const Values outputs = annotated(call, *module, *inputs, 0);
    for (size_t i = 0; i < outputs.size(); ++i)
      values_.insert_or_assign(i == 0 ? call.name : fmt::format("{}.{}", call.name, i), outputs[i]);
    return outputs.size() > 0;
  }

  Values annotated(const TorchscriptConfig::Call& call, const ModuleRef<ScriptModule>& module,
                   const std::vector<Value>& inputs, size_t depth) {
    if (depth == call.annotations.size())
      return builder_.call(call.name, module, inputs);
    const ir::Tag& tag = call.annotations[depth];
    const auto scope = builder_.annotate(tag.name, tag.index);
    return annotated(call, module, inputs, depth + 1);
  }

  /// Parameters of different submodules that are one in the file.
  void tie() {
    struct Place {
      std::string module, name;
    };
    std::map<const void*, Place> first;
    for (const auto& call : config_.calls)
      for_each_tensor(
          file_->find(call.module).value_or_throw(),
          [&](torch::jit::Module& owner, const std::string& attribute, const std::string& name) {
            const void* identity = is_trained(owner, attribute) ? file_->identity(name) : nullptr;
            if (!identity)
              return;
            const auto [place, is_new] = first.try_emplace(identity, Place{call.module, name});
            if (!is_new && place->second.module != call.module)
              builder_.tie(name, place->second.name);
          },
          call.module);
  }

  Result<Model> loss() {
    if (config_.loss_of.empty()) {
      PIPER_TRY(const auto value, named_loss({config_.loss}, 1));
      return builder_.loss(value[0]);
    }
    PIPER_TRY(const auto of, named_loss(config_.loss_of, 2));
    if (config_.loss == "cross_entropy")
      return builder_.loss(of[0], of[1]);
    if (config_.loss == "mse")
      return builder_.loss(builder_.call(
          "loss", [](const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(x, y); },
          of[0], of[1]));
    return user_error(fmt::format("there is no loss '{}' of values", config_.loss), "loss",
                      "use cross_entropy, mse, or the name of a call that returns the loss");
  }

  Result<std::vector<Value>> named_loss(const std::vector<std::string>& names, size_t count) const {
    auto found = values(names);
    if (found.ok() && found->size() == count)
      return found;
    Error error = found.ok() ? user_error(fmt::format("it is of {} values", found->size()), {},
                                          fmt::format("give {}", count))
                             : found.error();
    error.where = "loss";
    return error;
  }

  const TorchscriptConfig& config_;
  std::shared_ptr<const TorchscriptFile> file_;
  ModelBuilder builder_;
  std::map<std::string, Value> values_;
  std::map<std::string, Part> parts_;
};

/// "lm.08823…": workers whose file is another one differ in their model's name.
std::string name_of(const TorchscriptConfig& config, const TorchscriptFile& file) {
  std::string name = std::filesystem::path(config.file).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return file.digest().empty() ? name : fmt::format("{}.{}", name, file.digest());
}

} // namespace

Result<Model> torchscript(const TorchscriptConfig& config, DataSource data) {
  if (config.batch < 1)
    return user_error(fmt::format("batch is {}", config.batch), "torchscript",
                      "sizes are at least 1");
  PIPER_TRY(auto file, TorchscriptFile::open(config.file));
  const std::string name = name_of(config, *file);
  PIPER_TRY(Model model, Composer(config, std::move(file), name).compose());
  model.data = std::move(data);
  return model;
}

} // namespace piper::models
