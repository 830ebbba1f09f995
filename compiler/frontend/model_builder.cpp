#include "compiler/frontend/model_builder.h"

#include "compiler/frontend/build.h"
#include "compiler/frontend/call_memory.h"
#include "compiler/frontend/dtypes.h"
#include "compiler/frontend/infer.h"
#include "ir/model_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <algorithm>
#include <cctype>
#include <stdexcept>
#include <unordered_map>

namespace piper {

namespace frontend {
void throw_wrong_arity(size_t inputs) {
  throw std::invalid_argument(fmt::format("it does not take {} tensors", inputs));
}
} // namespace frontend

namespace {

Result<void> check_name(const std::string& name, const char* what) {
  bool plain = !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || std::string_view("_-.:/").find(c) != std::string_view::npos;
  });
  if (!plain)
    return user_error(fmt::format("'{}' cannot be the name of {}", name, what), {},
                      "use letters, digits and _ - . : /");
  return {};
}

Error in_call(Error error, const std::string& name) {
  error.where = fmt::format("call '{}'", name);
  return error;
}

/// Parameters and buffers of a floating type become `dtype`; others stay.
void convert(torch::nn::Module& module, c10::ScalarType dtype) {
  at::NoGradGuard no_grad;
  for (Tensors tensors : {module.parameters(), module.buffers()})
    for (at::Tensor& tensor : tensors)
      if (tensor.is_floating_point() && tensor.scalar_type() != dtype)
        tensor.set_data(tensor.to(dtype));
}

} // namespace

ModelBuilder::ModelBuilder(std::string model_name) : dtype_(c10::kFloat) {
  spec_.name = std::move(model_name);
  if (auto ok = check_name(spec_.name, "a model"); !ok)
    fail(ok.error());
}

ModelBuilder::~ModelBuilder() = default;

void ModelBuilder::fail(Error error) {
  if (!error_)
    error_ = std::move(error);
}

void ModelBuilder::dtype(c10::ScalarType dtype) {
  if (!c10::isFloatingType(dtype) || !to_dtype(dtype))
    return fail(user_error(fmt::format("a model cannot compute in {}", c10::toString(dtype)), {},
                           "use kFloat32, kFloat64, kFloat16 or kBFloat16"));
  dtype_ = dtype;
}

Result<ir::ValueId> ModelBuilder::add_value(ir::ModelValue value) {
  if (!value_names_.insert(value.name).second)
    return user_error(fmt::format("there are two values or calls named '{}'", value.name), {},
                      "give one of them another name");
  spec_.values.push_back(std::move(value));
  return ir::ValueId(spec_.values.size() - 1);
}

Value ModelBuilder::input(const std::string& name, std::vector<int64_t> shape,
                          c10::ScalarType dtype) {
  auto add = [&]() -> Result<ir::ValueId> {
    PIPER_CHECK_OK(check_name(name, "an input"));
    if (shape.empty() || std::any_of(shape.begin(), shape.end(), [](int64_t n) { return n <= 0; }))
      return user_error(fmt::format("its shape is [{}]", fmt::join(shape, ",")), {},
                        "the first extent is the global batch; all are at least 1");
    if (spec_.inputs.empty())
      spec_.batch = shape[0];
    if (shape[0] != spec_.batch)
      return user_error(fmt::format("it has {} rows, '{}' has {}", shape[0],
                                    spec_.value(spec_.inputs.front()).name, spec_.batch),
                        {}, "the first extent of every input is the global batch");
    auto type = to_dtype(dtype);
    if (!type)
      return user_error(fmt::format("its element type {} is not supported", c10::toString(dtype)));
    shape[0] = 1;
    return add_value({name, {*type, shape, 0}, false, {}});
  };
  if (error_)
    return {};
  auto id = add();
  if (!id) {
    Error error = id.error();
    error.where = fmt::format("input '{}'", name);
    fail(std::move(error));
    return {};
  }
  spec_.inputs.push_back(*id);
  return {this, *id};
}

ModelBuilder::Scope::~Scope() {
  builder_->scopes_.pop_back();
}

ModelBuilder::Scope ModelBuilder::annotate(const std::string& name) {
  return annotate(name, next_index_[name]++);
}

ModelBuilder::Scope ModelBuilder::annotate(const std::string& name, int64_t index) {
  if (auto ok = check_name(name, "an annotation"); !ok)
    fail(ok.error());
  if (name == "PASS" || name == "call")
    fail(user_error(fmt::format("the annotation '{}' has a meaning of its own in filters", name),
                    {}, "use another name"));
  for (const ir::Tag& outer : scopes_)
    if (outer.name == name)
      fail(user_error(fmt::format("the annotation '{} = {}' is inside of '{} = {}'", name, index,
                                  name, outer.index),
                      {}, "a call has one index for each annotation: use another name inside"));
  scopes_.push_back({name, index});
  return Scope(this);
}

std::optional<uint32_t> ModelBuilder::add_module(const std::string& name,
                                                 std::optional<std::string> prefix,
                                                 std::function<BuiltModule()> make,
                                                 std::function<BuiltModule(Piece)> make_part) {
  if (error_)
    return std::nullopt;
  if (auto ok = check_name(name, "a call or module"); !ok) {
    fail(ok.error());
    return std::nullopt;
  }
  if (!module_names_.insert(name).second) {
    fail(user_error(fmt::format("there are two calls or modules named '{}'", name), {},
                    "give one of them another name; to share its parameters make it with "
                    "`module` and call that twice"));
    return std::nullopt;
  }
  auto converted = [dtype = dtype_](BuiltModule built) {
    if (built.module)
      convert(*built.module, dtype);
    return built;
  };
  ModuleFactory factory;
  factory.name = name;
  factory.make = [make = std::move(make), converted] { return converted(make()); };
  if (make_part)
    factory.make_part = [make_part = std::move(make_part), converted](Piece piece) {
      return converted(make_part(piece));
    };
  modules_.push_back({std::move(factory), prefix.value_or(name)});
  return static_cast<uint32_t>(modules_.size() - 1);
}

std::optional<uint32_t> ModelBuilder::check_ref(const CallOptions& options,
                                                const ModelBuilder* builder,
                                                std::optional<uint32_t> index) {
  if (builder != this)
    fail(in_call(user_error("its module is of another builder"), options.name));
  else if (options.prefix)
    fail(in_call(user_error("its module has a prefix already", {},
                            "give the prefix to `module`, once for all its calls"),
                 options.name));
  return error_ ? std::nullopt : index;
}

std::vector<Value> ModelBuilder::trace(const CallOptions& options, std::optional<uint32_t> module,
                                       const std::vector<Value>& inputs) {
  if (error_ || !module)
    return {};
  auto outputs = try_trace(options, *module, inputs);
  if (!outputs) {
    fail(in_call(outputs.error(), options.name));
    return {};
  }
  return *std::move(outputs);
}

Result<std::vector<Value>> ModelBuilder::try_trace(const CallOptions& options, uint32_t module,
                                                   const std::vector<Value>& inputs) {
  PIPER_CHECK_OK(check_name(options.name, "a call"));
  ir::ModelCall call{.name = options.name, .annotations = scopes_};
  std::vector<TracedTensor> traced;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!owns(inputs[i]))
      return user_error(fmt::format("its input {} is no value of this model", i), {},
                        "give it what `input` or `call` of the same builder returned");
    call.inputs.push_back(inputs[i].id_);
    const ir::ModelValue& value = spec_.value(inputs[i].id_);
    traced.push_back({value.type, value.differentiable});
  }

  ModuleRecord& record = modules_[module];
  BuiltModule built;
  try {
    built = build_seeded(record.factory, 0);
  } catch (const std::exception& error) {
    return user_error(fmt::format("its factory failed: {}", first_line(error)));
  }
  if (!record.called)
    PIPER_CHECK_OK(add_params(record, built));
  record.called = true;
  for (const auto& [own_name, id] : record.factory.params)
    if (std::find(call.params.begin(), call.params.end(), id) == call.params.end())
      call.params.push_back(id);

  PIPER_CHECK_OK(add_cut(options.cut, record, built, call));
  const bool has_experts = call.cut == ir::Cut::Experts;
  PIPER_TRY(
      std::vector<TracedTensor> outputs,
      infer_outputs(built, traced, has_experts ? std::optional(options.cut.counts) : std::nullopt));
  ir::CallId id(spec_.calls.size());
  std::vector<Value> values;
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::string name = i == 0 ? call.name : fmt::format("{}.{}", call.name, i);
    PIPER_TRY(ir::ValueId value, add_value({name, outputs[i].type, outputs[i].differentiable, id}));
    call.outputs.push_back(value);
    values.push_back({this, value});
  }
  PIPER_TRY(call.memory, measure_memory(built, call, spec_));
  call.flops_per_row = options.flops_per_row.value_or(estimate_flops(call));
  spec_.calls.push_back(std::move(call));
  call_module_.push_back(module);
  return values;
}

Result<void> ModelBuilder::add_params(ModuleRecord& record, const BuiltModule& built) {
  if (!built.module)
    return {};
  std::unordered_map<c10::TensorImpl*, ir::ParamId> seen; // a tensor registered under two names
  for (const auto& item : built.module->named_parameters()) {
    const at::Tensor& tensor = item.value();
    std::string name = record.prefix.empty() ? item.key() : record.prefix + "." + item.key();
    PIPER_CHECK_OK(check_name(name, "a parameter"));
    if (!tensor.requires_grad())
      return user_error(fmt::format("its parameter '{}' takes no gradient", name), {},
                        "register what is not trained as a buffer");
    auto dtype = to_dtype(tensor.scalar_type());
    if (!dtype)
      return user_error(fmt::format("its parameter '{}' has the unsupported element type {}", name,
                                    c10::toString(tensor.scalar_type())));
    auto [known, is_new] =
        seen.emplace(tensor.unsafeGetTensorImpl(), ir::ParamId(spec_.params.size()));
    record.factory.params.emplace_back(item.key(), known->second);
    if (!is_new)
      continue;
    if (spec_.find_param(name))
      return user_error(fmt::format("there are two parameters named '{}'", name), {},
                        "give one of the modules another prefix; to share a parameter, give "
                        "them two names and `tie` them");
    spec_.params.push_back({name, {*dtype, tensor.sizes().vec(), -1}});
  }
  return {};
}

Result<void> ModelBuilder::add_cut(const CallCut& cut, const ModuleRecord& record,
                                   const BuiltModule& whole, ir::ModelCall& call) {
  call.cut = cut.kind;
  call.pieces = cut.pieces;
  if (cut.kind == ir::Cut::Experts) {
    if (cut.counts >= call.inputs.size())
      return user_error(fmt::format("it has no input {} for its counts", cut.counts));
    call.counts = call.inputs[cut.counts];
    spec_.values[call.counts.value].is_counts = true;
  }
  if (cut.kind != ir::Cut::Tensor && cut.kind != ir::Cut::Experts)
    return {};
  if (!record.factory.make_part || cut.pieces < 1)
    return user_error(
        fmt::format("it is to be cut into {} pieces, but nothing makes one", cut.pieces), {},
        "give it a factory that takes a Piece");
  BuiltModule piece;
  try {
    piece = record.factory.make_part({0, cut.pieces});
  } catch (const std::exception& error) {
    return user_error(fmt::format("its factory failed to make one of {} pieces: {}", cut.pieces,
                                  first_line(error)));
  }
  const auto wholes = whole.module->named_parameters(), parts = piece.module->named_parameters();
  for (const auto& [own_name, id] : record.factory.params) {
    const at::Tensor *all = wholes.find(own_name), *part = parts.find(own_name);
    if (part && part->sizes() == all->sizes())
      continue;
    int dim = 0;
    std::vector<int64_t> joined = part ? part->sizes().vec() : std::vector<int64_t>();
    while (dim < std::ssize(joined) && dim < all->dim() - 1 && joined[dim] == all->size(dim))
      ++dim;
    if (dim < std::ssize(joined))
      joined[dim] *= cut.pieces;
    if (!part || all->sizes() != joined)
      return user_error(
          fmt::format("in one of {} pieces its parameter '{}' of shape [{}] is {}", cut.pieces,
                      own_name, fmt::join(all->sizes(), ","),
                      part ? fmt::format("[{}]", fmt::join(part->sizes(), ",")) : "missing"),
          {}, "a piece has the whole parameter, or its part of one dimension");
    spec_.params[id.value].cut = dim;
  }
  return {};
}

double ModelBuilder::estimate_flops(const ir::ModelCall& call) const {
  bool looks_up = std::none_of(call.inputs.begin(), call.inputs.end(), [&](ir::ValueId id) {
    return ir::is_floating(spec_.value(id).type.dtype);
  });
  const ir::TensorType& out = spec_.value(call.outputs.front()).type;
  if (looks_up || out.dims.empty() || out.batch_dim < 0)
    return 0;
  double weights = 0;
  for (ir::ParamId id : call.params)
    if (const ir::TensorType& type = spec_.param(id).type; type.dims.size() >= 2)
      weights += static_cast<double>(type.numel(1));
  double tokens = static_cast<double>(out.numel(1)) / static_cast<double>(out.dims.back());
  return 2 * weights * tokens;
}

void ModelBuilder::tie(const std::string& name, const std::string& of) {
  ties_.push_back({name, of});
}

/// Logical parameters that are tied become one, named by the `of` that is tied to no other.
Result<void> ModelBuilder::merge_ties(ir::ModelSpec& spec,
                                      std::vector<ModuleFactory>& modules) const {
  std::vector<ir::ParamId> same; // of each parameter: what stands for it
  for (uint32_t i = 0; i < spec.params.size(); ++i)
    same.emplace_back(i);
  auto root = [&](ir::ParamId id) {
    while (same[id.value] != id)
      id = same[id.value];
    return id;
  };
  for (const Tie& tie : ties_) {
    const std::string where = fmt::format("tie('{}', '{}')", tie.name, tie.of);
    ir::ParamId name = spec.find_param(tie.name), of = spec.find_param(tie.of);
    if (!name || !of)
      return user_error(fmt::format("there is no parameter '{}'", name ? tie.of : tie.name), where,
                        "a name is the module's prefix, a dot, and the name in the module");
    const ir::TensorType &a = spec.param(name).type, &b = spec.param(of).type;
    if (a != b)
      return user_error(
          fmt::format("'{}' is {} and '{}' is {}", tie.name, a.to_string(), tie.of, b.to_string()),
          where, "tied parameters have one shape and type");
    if (spec.param(name).cut != spec.param(of).cut)
      return user_error(fmt::format("of '{}' and '{}' a call that is cut cuts only one, or "
                                    "another dimension",
                                    tie.name, tie.of),
                        where, "cut calls that share a parameter alike, or not at all");
    same[root(name).value] = root(of);
  }

  std::vector<ir::ParamId> renumbered(spec.params.size());
  std::vector<ir::ModelParam> kept;
  for (uint32_t i = 0; i < spec.params.size(); ++i)
    if (same[i].value == i) {
      renumbered[i] = ir::ParamId(kept.size());
      kept.push_back(spec.params[i]);
    }
  auto merged = [&](ir::ParamId id) { return renumbered[root(id).value]; };
  for (ModuleFactory& module : modules)
    for (auto& [own_name, id] : module.params)
      id = merged(id);
  for (ir::ModelCall& call : spec.calls) {
    std::vector<ir::ParamId> params;
    for (ir::ParamId id : call.params)
      if (std::find(params.begin(), params.end(), merged(id)) == params.end())
        params.push_back(merged(id));
    call.params = std::move(params);
  }
  spec.params = std::move(kept);
  return {};
}

/// What does not reach the loss would be computed for nothing, or was meant to.
Result<void> ModelBuilder::check_all_used(const ir::ModelSpec& spec) const {
  for (const ModuleRecord& record : modules_)
    if (!record.called)
      return user_error(fmt::format("the module '{}' is never called", record.factory.name), {},
                        "call it, or leave it out");
  std::vector<bool> needed(spec.values.size());
  needed[spec.loss.value] = true;
  for (size_t i = spec.calls.size(); i-- > 0;) {
    const ir::ModelCall& call = spec.calls[i];
    if (std::none_of(call.outputs.begin(), call.outputs.end(),
                     [&](ir::ValueId id) { return needed[id.value]; }))
      return in_call(user_error("none of its outputs reaches the loss", {},
                                "use what it returns, or leave it out"),
                     call.name);
    for (ir::ValueId id : call.inputs)
      needed[id.value] = true;
  }
  for (ir::ValueId id : spec.inputs)
    if (!needed[id.value])
      return user_error("no call reads it", fmt::format("input '{}'", spec.value(id).name),
                        "use it, or leave it out");
  return {};
}

Result<Model> ModelBuilder::finish(Value loss) {
  if (!owns(loss))
    return user_error("the loss is no value of this model", {},
                      "give `loss` what `call` of the same builder returned");
  ir::ModelSpec spec = spec_;
  spec.loss = loss.id_;
  const ir::ModelValue& value = spec.value(loss.id_);
  const std::string where = value.producer
                                ? fmt::format("call '{}'", spec.call(value.producer).name)
                                : fmt::format("input '{}'", value.name);
  if (!value.type.dims.empty())
    return user_error(fmt::format("the loss is no scalar but {}", value.type.to_string()), where,
                      "take its mean over the rows");
  if (!value.differentiable)
    return user_error("the loss is not differentiable", where,
                      "it must depend on a parameter by differentiable operations alone");
  PIPER_CHECK_OK(check_all_used(spec));

  Model model;
  for (const ModuleRecord& record : modules_)
    model.modules.push_back(record.factory);
  PIPER_CHECK_OK(merge_ties(spec, model.modules));
  PIPER_CHECK_OK(ir::verify(spec));
  model.spec = std::make_shared<const ir::ModelSpec>(std::move(spec));
  model.call_module = call_module_;
  return model;
}

Result<Model> ModelBuilder::loss(Value loss) {
  if (error_)
    return *error_;
  return finish(loss);
}

Result<Model> ModelBuilder::loss(Value logits, Value targets) {
  auto cross_entropy = [](const at::Tensor& x, const at::Tensor& t) {
    return at::cross_entropy_loss(x.reshape({-1, x.size(-1)}), t.reshape(-1));
  };
  std::vector<ir::Tag> outer = scopes_;
  if (!spec_.calls.empty())
    scopes_ = spec_.calls.back().annotations;
  Value loss = call("loss", cross_entropy, logits, targets);
  scopes_ = std::move(outer);
  return this->loss(loss);
}

} // namespace piper
