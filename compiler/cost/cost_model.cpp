#include "compiler/cost/cost_model.h"

#include "compiler/cost/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace piper::compiler {

using namespace ir;

namespace {

using OrderedJson = nlohmann::ordered_json;

struct NamedAffine {
  const char* key;
  Affine CallCost::*field;
};
constexpr NamedAffine kAffine[] = {
    {"forward", &CallCost::forward},
    {"backward", &CallCost::backward},
    {"backward_input", &CallCost::backward_input},
    {"backward_weight", &CallCost::backward_weight},
};

Affine read_affine(const JsonValue& in) {
  in.allow_only({"fixed", "per_row"});
  return {in.number_or("fixed", 0), in.number_or("per_row", 0)};
}

CallCost read_call(const JsonValue& in) {
  in.allow_only({"forward", "backward", "backward_input", "backward_weight"});
  CallCost cost;
  for (const auto& [key, field] : kAffine)
    if (in.has(key))
      cost.*field = read_affine(in[key]);
  if (!in.has("backward_input") && !in.has("backward_weight")) {
    const Affine half{cost.backward.fixed / 2, cost.backward.per_row / 2};
    cost.backward_input = cost.backward_weight = half;
  }
  return cost;
}

CostModel read_costs(const JsonValue& in, const ModelSpec& model) {
  in.allow_only({"source", "forward_chunk", "backward_chunk", "instruction", "iteration", "update",
                 "add", "copy", "moments", "calls", "cluster"});
  CostModel costs;
  if (in.has("source"))
    costs.source = in["source"].string();
  costs.forward_chunk = in.number_or("forward_chunk", 0);
  costs.backward_chunk = in.number_or("backward_chunk", 0);
  costs.instruction = in.number_or("instruction", 0);
  costs.iteration = in.number_or("iteration", 0);
  costs.update = in.number_or("update", 0);
  costs.add = in.number_or("add", 0);
  costs.copy = in.number_or("copy", 0);
  costs.moments = in.integer_or("moments", costs.moments);
  costs.calls.resize(model.calls.size());
  std::vector<bool> given(model.calls.size());
  const JsonValue calls = in["calls"];
  for (const auto& [name, value] : calls.items()) {
    const CallId call = model.find_call(name);
    if (!call)
      value.fail(fmt::format("is no call of the model '{}'", model.name),
                 "profile the model that is simulated: the same flags");
    costs.calls[call.value] = read_call(value);
    given[call.value] = true;
  }
  for (size_t c = 0; c < given.size(); ++c)
    if (!given[c])
      calls.fail(
          fmt::format("lacks the call \"{}\" of the model '{}'", model.calls[c].name, model.name),
          "profile the model that is simulated: the same flags");
  return costs;
}

} // namespace

std::string CostModel::to_json(const ModelSpec& model) const {
  OrderedJson json;
  json["source"] = source;
  json["forward_chunk"] = forward_chunk;
  json["backward_chunk"] = backward_chunk;
  json["instruction"] = instruction;
  json["iteration"] = iteration;
  json["update"] = update;
  json["add"] = add;
  json["copy"] = copy;
  json["moments"] = moments;
  OrderedJson& all = json["calls"] = OrderedJson::object();
  for (size_t c = 0; c < calls.size(); ++c) {
    OrderedJson& call = all[model.calls[c].name];
    for (const auto& [key, field] : kAffine) {
      const Affine& affine = calls[c].*field;
      call[key] = OrderedJson{{"fixed", affine.fixed}, {"per_row", affine.per_row}};
    }
  }
  return json.dump(1) + "\n";
}

Result<CostModel> CostModel::parse(std::string_view json, const ModelSpec& model,
                                   std::string file) {
  return read_json(json, std::move(file),
                   [&](const JsonValue& root) { return read_costs(root, model); });
}

Affine fit(const std::vector<std::pair<int64_t, double>>& samples) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const auto& [rows, figure] : samples) {
    const auto r = static_cast<double>(rows);
    n += 1;
    x += r;
    y += figure;
    xx += r * r;
    xy += r * figure;
  }
  if (n == 0)
    return {};
  const double spread = n * xx - x * x;
  const double slope = spread > 0 ? (n * xy - x * y) / spread : 0;
  if (const double fixed = (y - slope * x) / n; spread > 0 && slope >= 0 && fixed >= 0)
    return {fixed, slope};
  if (slope < 0 || xx == 0) // does not grow with the rows
    return {y / n, 0};
  return {0, xy / xx};
}

CostModel declared_costs(const ModelSpec& model, const DeclaredRates& rates) {
  CostModel costs;
  costs.source = fmt::format("declared: {:g} FLOP/s, {:g} bytes/s of memory, {:g} s an instruction",
                             rates.flops, rates.bytes, rates.instruction);
  costs.instruction = rates.instruction;
  const double element = 4 / rates.bytes; // reads and writes of 4 bytes each
  costs.update = 7 * element;             // AdamW: parameter and both moments both ways, gradient
  costs.add = 3 / rates.bytes;
  costs.copy = 2 / rates.bytes;
  for (const ModelCall& call : model.calls) {
    CallCost cost;
    cost.forward.per_row = call.flops_per_row / rates.flops;
    cost.backward.per_row = 2 * cost.forward.per_row;
    cost.backward_input = cost.backward_weight = cost.forward;
    costs.calls.push_back(cost);
  }
  return costs;
}

} // namespace piper::compiler
