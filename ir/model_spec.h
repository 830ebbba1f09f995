// ModelSpec: a model as the compiler sees it. Calls in trace order, the values between them, the
// parameters they use. Made by compiler/frontend from LibTorch modules, or parsed from text.
#pragma once

#include "ir/call_memory.h"
#include "ir/fingerprint.h"
#include "ir/ids.h"
#include "ir/result.h"
#include "ir/tensor_type.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace piper::ir {

/// An annotation: `layer = 3`.
struct Tag {
  std::string name;
  int64_t index = 0;
  bool operator==(const Tag&) const = default;
};

/// A tensor that a call makes or that the data source feeds.
struct ModelValue {
  std::string name; ///< unique in the model: an input's name, or its call's ("attn3", "attn3.1")
  TensorType type;
  bool differentiable = false; ///< a gradient flows back to it
  CallId producer;             ///< none for a model input
  bool is_counts = false;      ///< [1, experts]: how many rows of other values go to each expert
  bool operator==(const ModelValue&) const = default;
};

/// A logical parameter. Calls that share it (a module called twice, tied weights) name the same
/// one.
struct ModelParam {
  std::string name; ///< unique: "blocks.3.ln1.weight"
  TensorType type;  ///< without batch rows
  int cut = -1;     ///< the dimension along which a call that is cut cuts it; -1: it stays whole
  bool operator==(const ModelParam&) const = default;
};

/// How the ranks of a group may share a call.
enum class Cut : uint8_t {
  None,
  Tensor,  ///< each with a piece of its parameters; what it gives is the sum over the ranks
  Tokens,  ///< each on a piece of the dimension after the rows (what works token by token)
  Experts, ///< each with some of its experts: every value of it but the counts has its rows sorted
           ///< by expert
};
const char* to_string(Cut cut); ///< "none", "tensor", "tokens", "experts"

/// The smallest thing that can be scheduled.
struct ModelCall {
  std::string name;             ///< unique in the model
  std::vector<Tag> annotations; ///< outermost first
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<ParamId> params; ///< in the order in which the module registers them
  double flops_per_row = 0;    ///< forward, declared; 2 x parameters x tokens if not given
  Cut cut = Cut::None;
  int64_t pieces = 1; ///< Tensor, Experts: into how many pieces at most, all of one size
  ValueId counts;     ///< Experts: which input holds the counts
  CallMemory memory;
  bool operator==(const ModelCall&) const = default;
};

struct ModelSpec {
  std::string name;
  int64_t batch = 0; ///< rows of the global batch of one iteration
  std::vector<ModelValue> values;
  std::vector<ModelParam> params;
  std::vector<ModelCall> calls; ///< in trace order: a call uses only values made before it
  std::vector<ValueId> inputs;  ///< what the data source feeds
  ValueId loss;                 ///< a scalar: the mean over the rows of what was fed

  const ModelCall& call(CallId id) const { return calls[id.value]; }
  const ModelValue& value(ValueId id) const { return values[id.value]; }
  const ModelParam& param(ParamId id) const { return params[id.value]; }
  CallId find_call(std::string_view name) const;   ///< none if there is no such call
  ValueId find_value(std::string_view name) const; ///< likewise
  ParamId find_param(std::string_view name) const; ///< likewise

  /// Consecutive calls with one annotation stack are one segment. Entry i is the segment of call i;
  /// segments are numbered in trace order.
  std::vector<uint32_t> segments() const;

  /// Of the text form without what was measured, which may differ between machines. Two processes
  /// whose models differ in anything that is planned differ here.
  Fingerprint fingerprint() const;

  std::string to_text() const;
  static Result<ModelSpec> parse(std::string_view text);
  bool operator==(const ModelSpec&) const = default;

private:
  std::string to_text(bool measured) const;
};

/// Refuses a spec that breaks the rules above: a value used before it is made, two values or calls
/// of one name, a call without outputs, a loss that is no scalar, a cut that cannot be.
Result<void> verify(const ModelSpec& model);

} // namespace piper::ir
