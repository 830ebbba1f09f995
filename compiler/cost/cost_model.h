// CostModel: what the instructions of a plan cost in time on one device. Plain data, declared or
// measured (`piper profile`), with a JSON form that parses back. What calls cost in memory is a
// property of the model (ir/call_memory.h).
#pragma once

#include "ir/model_spec.h"
#include "ir/result.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace piper::compiler {

/// fixed + per_row x rows, in seconds.
struct Affine {
  double fixed = 0, per_row = 0;
  double at(int64_t rows) const { return fixed + per_row * static_cast<double>(rows); }
  bool operator==(const Affine&) const = default;
};

/// One call of the model. Rows are those that a device works on in a microbatch.
struct CallCost {
  Affine forward, backward; ///< seconds
  /// Seconds where the gradients of inputs and of weights are computed apart.
  Affine backward_input, backward_weight;
  bool operator==(const CallCost&) const = default;
};

struct CostModel {
  std::string source;          ///< where the figures come from, for people
  std::vector<CallCost> calls; ///< by CallId
  /// Seconds of a chunk (an autograd graph of one or several calls) beside its calls.
  double forward_chunk = 0, backward_chunk = 0;
  double instruction = 0; ///< seconds that any instruction costs beside its work
  double iteration = 0;   ///< seconds that an iteration costs beside its instructions
  double update = 0;      ///< seconds an element that the optimizer updates
  double add = 0;         ///< seconds a byte of a sum: of Add, and of what a collective adds up
  double copy = 0;        ///< seconds a byte that is copied: inputs, moved state, and what
                          ///< collectives move where Level::hands_over
  /// Arrays of the optimizer as long as the parameters: AdamW 2, SGD with momentum 1.
  int64_t moments = 2;

  /// Seconds of a call's forward and backward, for whoever balances stages.
  double seconds(ir::CallId call, int64_t rows) const {
    const CallCost& cost = calls[call.value];
    return cost.forward.at(rows) + cost.backward.at(rows);
  }

  /// Names calls and values as `model` does.
  std::string to_json(const ir::ModelSpec& model) const;
  /// Refuses, with line, column and key: malformed JSON, unknown keys, negative figures, calls that
  /// the model doesn't have, and calls of the model that are missing. The key "cluster" is left to
  /// Cluster::parse.
  static Result<CostModel> parse(std::string_view json, const ir::ModelSpec& model,
                                 std::string file = {});
  bool operator==(const CostModel&) const = default;
};

/// The line of least squares through (rows, figure), at least 0 in both terms; all of it per row,
/// or fixed at rows 0, where there is one sample.
Affine fit(const std::vector<std::pair<int64_t, double>>& samples);

/// How fast a device is said to be, where nothing has been measured.
struct DeclaredRates {
  double flops = 100e12; ///< per second
  double bytes = 2e12;   ///< per second, of memory
  double instruction = 2e-6;
};

/// From the model's declared FLOPs: a backward takes twice its forward, half of it for inputs and
/// half for weights.
CostModel declared_costs(const ir::ModelSpec& model, const DeclaredRates& rates = {});

} // namespace piper::compiler
