// Small models for tests. Each is valid: ir::verify accepts it.
#pragma once

#include "ir/model_spec.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

namespace piper::test {

/// Builds a ModelSpec call by call. Values are f32[B,width] unless said otherwise.
class SpecBuilder {
public:
  explicit SpecBuilder(std::string name, int64_t batch = 16, int64_t width = 4) : width_(width) {
    spec_.name = std::move(name);
    spec_.batch = batch;
  }

  ir::ValueId input(std::string name, bool differentiable = false) {
    spec_.inputs.push_back(value(std::move(name), {}, differentiable));
    return spec_.inputs.back();
  }
  ir::ParamId param(std::string name, std::vector<int64_t> dims) {
    spec_.params.push_back({std::move(name), {ir::DType::F32, std::move(dims), -1}});
    return ir::ParamId(spec_.params.size() - 1);
  }
  /// A call with one output, named after it.
  ir::ValueId call(const std::string& name, std::vector<ir::Tag> annotations,
                   std::vector<ir::ValueId> inputs, std::vector<ir::ParamId> params) {
    const ir::CallId id(spec_.calls.size());
    const ir::ValueId output = value(name, id, true);
    spec_.calls.push_back(
        {name, std::move(annotations), std::move(inputs), {output}, std::move(params), 0});
    return output;
  }
  /// A call with a weight [width,width] of its own, "NAME.w".
  ir::ValueId linear(const std::string& name, std::vector<ir::Tag> annotations,
                     std::vector<ir::ValueId> inputs) {
    return call(name, std::move(annotations), std::move(inputs),
                {param(name + ".w", {width_, width_})});
  }
  /// The last call: its output is the mean loss.
  std::shared_ptr<const ir::ModelSpec> loss(std::vector<ir::ValueId> inputs,
                                            std::vector<ir::ParamId> params = {}) {
    spec_.loss = call("loss", {}, std::move(inputs), std::move(params));
    spec_.values[spec_.loss.value].type = {ir::DType::F32, {}, -1};
    return std::make_shared<ir::ModelSpec>(std::move(spec_));
  }

private:
  ir::ValueId value(std::string name, ir::CallId producer, bool differentiable) {
    spec_.values.push_back(
        {std::move(name), {ir::DType::F32, {1, width_}, 0}, differentiable, producer});
    return ir::ValueId(spec_.values.size() - 1);
  }

  ir::ModelSpec spec_;
  int64_t width_;
};

/// x -> l0 -> l1 -> … -> loss(., y); call i is annotated layer=i.
inline std::shared_ptr<const ir::ModelSpec> chain_spec(int calls, int64_t batch = 16) {
  SpecBuilder b("chain", batch);
  ir::ValueId x = b.input("x");
  for (int i = 0; i < calls; ++i)
    x = b.linear(fmt::format("l{}", i), {{"layer", i}}, {x});
  return b.loss({x, b.input("y")});
}

/// As chain_spec, but the last layer also reads what the first one made.
inline std::shared_ptr<const ir::ModelSpec> skip_spec(int calls, int64_t batch = 16) {
  SpecBuilder b("skip", batch);
  ir::ValueId x = b.input("x"), first;
  for (int i = 0; i < calls; ++i) {
    std::vector<ir::ValueId> inputs = {x};
    if (i + 1 == calls && first && first != x)
      inputs.push_back(first);
    x = b.linear(fmt::format("l{}", i), {{"layer", i}}, inputs);
    first = i == 0 ? x : first;
  }
  return b.loss({x, b.input("y")});
}

/// As chain_spec, between an embedding and a loss that share the parameter "table".
inline std::shared_ptr<const ir::ModelSpec> tied_spec(int calls, int64_t batch = 16) {
  SpecBuilder b("tied", batch);
  const ir::ParamId table = b.param("table", {8, 4});
  ir::ValueId x = b.call("embed", {}, {b.input("x")}, {table});
  for (int i = 0; i < calls; ++i)
    x = b.linear(fmt::format("l{}", i), {{"layer", i}}, {x});
  return b.loss({x, b.input("y")}, {table});
}

} // namespace piper::test
