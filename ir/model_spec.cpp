#include "ir/model_spec.h"

#include "ir/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_set>

namespace piper::ir {

namespace {

template <class Item> uint32_t find_by_name(const std::vector<Item>& items, std::string_view name) {
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].name == name)
      return static_cast<uint32_t>(i);
  return Id<void>::kNone;
}

void append_list(std::string& out, const auto& ids, const auto& items) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i)
      out += ", ";
    text::append_name(out, items[ids[i].value].name);
  }
}

/// Reads names up to `end`, separated by commas, and looks each up.
template <class IdType>
std::vector<IdType> read_list(text::Reader& in, const text::NameTable& names, const char* what) {
  std::vector<IdType> out;
  do {
    std::string name = in.name(what);
    auto found = names.find(name);
    if (found == names.end())
      in.fail(fmt::format("there is no {} \"{}\"", what, name));
    out.push_back(IdType(found->second));
  } while (in.accept(","));
  return out;
}

void declare(text::Reader& in, text::NameTable& names, const std::string& name, const char* what) {
  if (!names.emplace(name, static_cast<uint32_t>(names.size())).second)
    in.fail(fmt::format("a second {} \"{}\"", what, name));
}

constexpr std::array kCuts = {"none", "tensor", "tokens", "experts"};
static_assert(kCuts.size() == static_cast<size_t>(Cut::Experts) + 1);

/// After the word `cut`.
void read_cut(text::Reader& in, const text::NameTable& values, ModelCall& call) {
  std::string_view word = in.bare("a way to cut");
  const auto found = std::find(kCuts.begin(), kCuts.end(), word);
  if (found == kCuts.end())
    in.fail(fmt::format("calls are not cut by \"{}\"", word));
  call.cut = static_cast<Cut>(found - kCuts.begin());
  call.pieces = in.integer("a number of pieces");
  if (in.accept("by"))
    call.counts = read_list<ValueId>(in, values, "value").front();
}

/// What a line "memory …" after its call's says: the parts that are not zero, in this order.
struct MemoryPart {
  const char* name;
  RowBytes CallMemory::*bytes = nullptr;
  PeakBytes CallMemory::*peak = nullptr;
  std::vector<ValueId> CallMemory::*ids = nullptr;
};
constexpr MemoryPart kMemoryParts[] = {
    {.name = "saved", .bytes = &CallMemory::saved},
    {.name = "keeps", .ids = &CallMemory::keeps},
    {.name = "deferred", .bytes = &CallMemory::deferred},
    {.name = "defers", .ids = &CallMemory::defers},
    {.name = "defers-gradients", .ids = &CallMemory::defers_gradients},
    {.name = "forward", .peak = &CallMemory::forward},
    {.name = "inference", .peak = &CallMemory::inference},
    {.name = "backward", .peak = &CallMemory::backward},
    {.name = "backward-input", .peak = &CallMemory::backward_input},
    {.name = "backward-weight", .peak = &CallMemory::backward_weight},
    {.name = "outputs-beyond", .bytes = &CallMemory::outputs_beyond},
    {.name = "gradients-beyond", .bytes = &CallMemory::gradients_beyond},
};

RowBytes read_bytes(text::Reader& in) {
  RowBytes bytes;
  bytes.fixed = in.integer("fixed bytes");
  bytes.per_row = in.integer("bytes a row");
  return bytes;
}

CallMemory read_memory(text::Reader& in, const text::NameTable& values) {
  CallMemory memory;
  for (const MemoryPart& part : kMemoryParts) {
    if (!in.accept(part.name))
      continue;
    if (part.bytes) {
      memory.*part.bytes = read_bytes(in);
    } else if (part.ids) {
      memory.*part.ids = read_list<ValueId>(in, values, "value");
    } else {
      do {
        (memory.*part.peak).moments.push_back(read_bytes(in));
      } while (in.accept(","));
    }
  }
  if (in.accept("buffers"))
    memory.buffers = in.integer("bytes");
  return memory;
}

void append_memory(std::string& out, const CallMemory& memory, const ModelSpec& model) {
  if (memory == CallMemory())
    return;
  const auto append_bytes = [&](const RowBytes& bytes) {
    text::append_int(out, bytes.fixed);
    out += ' ';
    text::append_int(out, bytes.per_row);
  };
  out += "memory";
  for (const MemoryPart& part : kMemoryParts) {
    if (part.bytes && memory.*part.bytes != RowBytes()) {
      out += fmt::format(" {} ", part.name);
      append_bytes(memory.*part.bytes);
    } else if (part.ids && !(memory.*part.ids).empty()) {
      out += fmt::format(" {} ", part.name);
      append_list(out, memory.*part.ids, model.values);
    } else if (part.peak && !(memory.*part.peak).moments.empty()) {
      out += fmt::format(" {}", part.name);
      const char* before = " ";
      for (const RowBytes& moment : (memory.*part.peak).moments) {
        out += std::exchange(before, ", ");
        append_bytes(moment);
      }
    }
  }
  if (memory.buffers)
    out += fmt::format(" buffers {}", memory.buffers);
  out += '\n';
}

ModelSpec read_model(text::Reader& in) {
  ModelSpec model;
  text::NameTable values, params, calls;
  if (!in.next_line())
    in.fail_expected("\"model\"");
  in.expect("model");
  model.name = in.name("the model's name");
  in.expect("batch");
  model.batch = in.integer("the rows of the batch");
  in.end_line();
  while (in.next_line()) {
    if (in.accept("value")) {
      ModelValue& value = model.values.emplace_back();
      value.name = in.name("a value's name");
      declare(in, values, value.name, "value");
      value.type = text::read_type(in);
      value.differentiable = in.accept("differentiable");
      value.is_counts = in.accept("counts");
    } else if (in.accept("param")) {
      ModelParam& param = model.params.emplace_back();
      param.name = in.name("a parameter's name");
      declare(in, params, param.name, "parameter");
      param.type = text::read_type(in);
      if (in.accept("cut"))
        param.cut = static_cast<int>(in.index("a dimension"));
    } else if (in.accept("call")) {
      CallId id(model.calls.size());
      ModelCall& call = model.calls.emplace_back();
      call.name = in.name("a call's name");
      declare(in, calls, call.name, "call");
      if (in.accept("[")) {
        do {
          call.annotations.push_back(text::read_tag(in));
        } while (in.accept(","));
        in.expect("]");
      }
      in.expect("(");
      if (!in.accept(")")) {
        call.inputs = read_list<ValueId>(in, values, "value");
        in.expect(")");
      }
      if (in.accept("uses"))
        call.params = read_list<ParamId>(in, params, "parameter");
      if (in.accept("->"))
        call.outputs = read_list<ValueId>(in, values, "value");
      if (in.accept("flops"))
        call.flops_per_row = in.number("a number of flops");
      if (in.accept("cut"))
        read_cut(in, values, call);
      for (ValueId output : call.outputs) {
        if (model.values[output.value].producer)
          in.fail(fmt::format("value \"{}\" is made twice", model.value(output).name));
        model.values[output.value].producer = id;
      }
    } else if (in.accept("memory")) {
      if (model.calls.empty())
        in.fail("\"memory\" comes after a call");
      model.calls.back().memory = read_memory(in, values);
    } else if (in.accept("inputs")) {
      model.inputs = read_list<ValueId>(in, values, "value");
    } else if (in.accept("loss")) {
      model.loss = read_list<ValueId>(in, values, "value").front();
    } else {
      in.fail_expected("\"value\", \"param\", \"call\", \"memory\", \"inputs\" or \"loss\"");
    }
    in.end_line();
  }
  return model;
}

Error wrong(const ModelSpec& model, std::string message, std::string hint = {}) {
  return user_error(std::move(message), fmt::format("model {}", model.name), std::move(hint));
}

Result<void> unique_names(const ModelSpec& model, const auto& items, const char* what) {
  std::unordered_set<std::string_view> seen;
  for (const auto& item : items)
    if (!seen.insert(item.name).second)
      return wrong(model, fmt::format("two {} are named \"{}\"", what, item.name));
  return {};
}

/// What a cut call says fits its parameters and values.
Result<void> verify_cut(const ModelSpec& model, const ModelCall& call) {
  auto wrong_cut = [&](std::string message) {
    return wrong(model, fmt::format("call {} can be cut by {}, but {}", call.name,
                                    to_string(call.cut), message));
  };
  const bool by_pieces = call.cut == Cut::Tensor || call.cut == Cut::Experts;
  if (call.pieces < 1 || (call.pieces > 1 && !by_pieces))
    return wrong_cut(fmt::format("it has {} pieces", call.pieces));
  if ((call.cut == Cut::Experts) != call.counts.valid())
    return wrong(model,
                 fmt::format("call {} must name its counts exactly if it has experts", call.name));
  if (by_pieces && call.pieces > 1) {
    bool any = false;
    for (ParamId id : call.params) {
      const ModelParam& param = model.param(id);
      any |= param.cut >= 0;
      if (param.cut >= 0 && param.type.dims[param.cut] % call.pieces != 0)
        return wrong_cut(fmt::format("parameter {} of type {} does not make {} pieces", param.name,
                                     param.type.to_string(), call.pieces));
      if (param.cut < 0 && call.cut == Cut::Experts)
        return wrong_cut(fmt::format("parameter {} is of no expert", param.name));
    }
    if (!any)
      return wrong_cut("none of its parameters is");
  }
  if (call.cut == Cut::Experts) {
    const TensorType& type = model.value(call.counts).type;
    if (std::find(call.inputs.begin(), call.inputs.end(), call.counts) == call.inputs.end() ||
        !model.value(call.counts).is_counts || type.dtype != DType::I64 || type.batch_dim >= 0 ||
        type.dims != std::vector<int64_t>{1, call.pieces})
      return wrong_cut(fmt::format("its counts are not an input of type i64[1,{}]", call.pieces));
  }
  for (const auto* list : {&call.inputs, &call.outputs})
    for (ValueId id : *list) {
      const ModelValue& value = model.value(id);
      const TensorType& type = value.type;
      if (call.cut == Cut::Tokens &&
          (type.batch_dim != 0 || type.dims[0] != 1 || type.dims.size() < 2))
        return wrong_cut(fmt::format("{} is {}, without a dimension of tokens after the rows",
                                     value.name, type.to_string()));
      if (call.cut == Cut::Experts && id != call.counts && type.batch_dim != 0)
        return wrong_cut(fmt::format("{} is {}, without rows first", value.name, type.to_string()));
    }
  return {};
}

} // namespace

const char* to_string(Cut cut) {
  return kCuts[static_cast<size_t>(cut)];
}

namespace text {

void append_tag(std::string& out, const Tag& tag) {
  // The last `=` separates, so a bare name may hold one too.
  append_name(out, tag.name);
  out += '=';
  append_int(out, tag.index);
}

Tag read_tag(Reader& in) {
  Tag tag;
  if (in.next_is_quote()) {
    tag.name = in.name("a tag");
    in.expect("=");
    tag.index = in.integer("a tag's index");
    return tag;
  }
  std::string_view word = in.bare("a tag");
  size_t equals = word.rfind('=');
  const char* end = word.data() + word.size();
  if (equals != word.npos) {
    tag.name = word.substr(0, equals);
    auto [stop, status] = std::from_chars(word.data() + equals + 1, end, tag.index);
    if (status == std::errc() && stop == end)
      return tag;
  }
  in.fail(fmt::format("expected a tag like layer=3, found \"{}\"", word));
}

} // namespace text

CallId ModelSpec::find_call(std::string_view wanted) const {
  return CallId(find_by_name(calls, wanted));
}
ValueId ModelSpec::find_value(std::string_view wanted) const {
  return ValueId(find_by_name(values, wanted));
}
ParamId ModelSpec::find_param(std::string_view wanted) const {
  return ParamId(find_by_name(params, wanted));
}

std::vector<uint32_t> ModelSpec::segments() const {
  std::vector<uint32_t> out(calls.size());
  for (size_t i = 1; i < calls.size(); ++i)
    out[i] = out[i - 1] + (calls[i].annotations != calls[i - 1].annotations);
  return out;
}

Fingerprint ModelSpec::fingerprint() const {
  return ir::fingerprint(to_text(/*measured=*/false));
}

std::string ModelSpec::to_text() const {
  return to_text(/*measured=*/true);
}

std::string ModelSpec::to_text(bool measured) const {
  std::string out = "model ";
  text::append_name(out, name);
  out += " batch ";
  text::append_int(out, batch);
  out += '\n';
  for (const ModelValue& value : values) {
    out += "value ";
    text::append_name(out, value.name);
    out += ' ' + value.type.to_string();
    out += value.differentiable ? " differentiable" : "";
    out += value.is_counts ? " counts\n" : "\n";
  }
  for (const ModelParam& param : params) {
    out += "param ";
    text::append_name(out, param.name);
    out += ' ' + param.type.to_string();
    out += param.cut >= 0 ? fmt::format(" cut {}\n", param.cut) : "\n";
  }
  for (const ModelCall& call : calls) {
    out += "call ";
    text::append_name(out, call.name);
    for (size_t i = 0; i < call.annotations.size(); ++i) {
      out += i ? ", " : " [";
      text::append_tag(out, call.annotations[i]);
    }
    out += call.annotations.empty() ? " (" : "] (";
    append_list(out, call.inputs, values);
    out += ')';
    if (!call.params.empty()) {
      out += " uses ";
      append_list(out, call.params, params);
    }
    if (!call.outputs.empty()) {
      out += " -> ";
      append_list(out, call.outputs, values);
    }
    if (call.flops_per_row != 0) {
      out += " flops ";
      text::append_double(out, call.flops_per_row);
    }
    if (call.cut != Cut::None) {
      out += fmt::format(" cut {} {}", to_string(call.cut), call.pieces);
      if (call.counts) {
        out += " by ";
        text::append_name(out, value(call.counts).name);
      }
    }
    out += '\n';
    if (measured)
      append_memory(out, call.memory, *this);
  }
  if (!inputs.empty()) {
    out += "inputs ";
    append_list(out, inputs, values);
    out += '\n';
  }
  if (loss) {
    out += "loss ";
    text::append_name(out, value(loss).name);
    out += '\n';
  }
  return out;
}

Result<ModelSpec> ModelSpec::parse(std::string_view text) {
  return text::parsing(text, read_model);
}

Result<void> verify(const ModelSpec& model) {
  PIPER_CHECK_OK(unique_names(model, model.values, "values"));
  PIPER_CHECK_OK(unique_names(model, model.params, "parameters"));
  PIPER_CHECK_OK(unique_names(model, model.calls, "calls"));
  if (model.batch < 1)
    return wrong(model, fmt::format("the batch has {} rows", model.batch));

  auto in_range = [](auto id, const auto& items) { return id.value < items.size(); };
  std::vector<bool> made(model.values.size());
  for (ValueId input : model.inputs) {
    if (!in_range(input, model.values))
      return wrong(model, fmt::format("an input is value {}, which does not exist", input.value));
    if (model.value(input).producer)
      return wrong(model, fmt::format("input \"{}\" is made by a call", model.value(input).name));
    if (made[input.value])
      return wrong(model, fmt::format("\"{}\" is an input twice", model.value(input).name));
    made[input.value] = true;
  }
  for (size_t i = 0; i < model.calls.size(); ++i) {
    const ModelCall& call = model.calls[i];
    for (ValueId input : call.inputs) {
      if (!in_range(input, model.values))
        return wrong(model, fmt::format("call {} reads value {}, which does not exist", call.name,
                                        input.value));
      if (!made[input.value])
        return wrong(model,
                     fmt::format("call {} reads \"{}\" before it is made", call.name,
                                 model.value(input).name),
                     "calls stand in trace order; a model has no cycles");
    }
    for (ParamId param : call.params)
      if (!in_range(param, model.params))
        return wrong(model, fmt::format("call {} uses parameter {}, which does not exist",
                                        call.name, param.value));
    if (call.outputs.empty())
      return wrong(model, fmt::format("call {} has no outputs", call.name));
    for (ValueId output : call.outputs) {
      if (!in_range(output, model.values))
        return wrong(model, fmt::format("call {} makes value {}, which does not exist", call.name,
                                        output.value));
      const ModelValue& value = model.value(output);
      if (made[output.value])
        return wrong(model, fmt::format("value \"{}\" is made twice", value.name));
      if (value.producer != CallId(i))
        return wrong(model, fmt::format("value \"{}\" does not name call {} as its producer",
                                        value.name, call.name));
      made[output.value] = true;
    }
  }
  for (const ModelParam& param : model.params) {
    if (param.type.batch_dim >= 0)
      return wrong(model, fmt::format("parameter \"{}\" has batch rows", param.name));
    if (param.cut >= std::ssize(param.type.dims))
      return wrong(model, fmt::format("parameter \"{}\" of type {} is cut along dimension {}",
                                      param.name, param.type.to_string(), param.cut));
  }
  for (const ModelCall& call : model.calls)
    PIPER_CHECK_OK(verify_cut(model, call));
  for (size_t i = 0; i < model.values.size(); ++i)
    if (!made[i])
      return wrong(model, fmt::format("value \"{}\" is neither an input nor made by a call",
                                      model.values[i].name));
  if (!in_range(model.loss, model.values))
    return wrong(model, "there is no loss", "end the model with ModelBuilder::loss");
  const ModelValue& loss = model.value(model.loss);
  if (!loss.type.dims.empty() || !is_floating(loss.type.dtype))
    return wrong(
        model,
        fmt::format("the loss \"{}\" is no scalar: it is {}", loss.name, loss.type.to_string()),
        "reduce it to the mean over the rows");
  return {};
}

} // namespace piper::ir
