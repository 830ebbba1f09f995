// NodeSelector: the compute nodes that a filter matches, in time that grows with what it matches
// and not with the graph; a schedule of m microbatches on p stages asks 2mp times.
#pragma once

#include "compiler/passes/pass.h"

#include <array>
#include <map>
#include <string>
#include <vector>

namespace piper::compiler {

/// The three times that a call runs for a microbatch. A call's Backward and its BackwardInput stand
/// at the same place: it has one of them.
enum class CallPass : uint8_t { Forward, Backward, Weight };
inline constexpr size_t kCallPasses = 3;
constexpr CallPass pass_of(ir::Op op) {
  return op == ir::Op::Forward          ? CallPass::Forward
         : op == ir::Op::BackwardWeight ? CallPass::Weight
                                        : CallPass::Backward;
}

class NodeSelector {
public:
  explicit NodeSelector(const ir::Graph& graph);

  /// Compute nodes that match, by microbatch, pass and call. Nothing: a User error.
  /// The graph must not be fused yet.
  Result<std::vector<const ir::Node*>> select(size_t directive, const ir::Filter& filter);

  /// The node of a call's pass and microbatch; null if it has none.
  const ir::Node* node(CallPass pass, int32_t microbatch, ir::CallId call) const {
    return nodes_[static_cast<size_t>(pass)][microbatch * calls_in_model_ + call.value];
  }
  /// The group that runs a call for a microbatch.
  ir::GroupId group(int32_t microbatch, ir::CallId call) const {
    return node(CallPass::Forward, microbatch, call)->id.at;
  }

private:
  const ir::Graph& graph_;
  size_t calls_in_model_;
  std::array<std::vector<const ir::Node*>, kCallPasses> nodes_; ///< each by microbatch and call
  std::map<std::string, std::vector<ir::CallId>> calls_;        ///< by the filter's terms on calls
};

} // namespace piper::compiler
