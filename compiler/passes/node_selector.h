// NodeSelector: the compute nodes that a filter matches, in time that grows with what it matches
// and not with the graph; a schedule of m microbatches on p stages asks 2mp times.
#pragma once

#include "compiler/passes/pass.h"

#include <map>
#include <string>
#include <vector>

namespace piper::compiler {

class NodeSelector {
public:
  explicit NodeSelector(const ir::Graph& graph);

  /// Forward and Backward nodes that match, by microbatch, pass and call. Nothing: a User error.
  /// The graph must not be fused yet.
  Result<std::vector<const ir::Node*>> select(size_t directive, const ir::Filter& filter);

  /// The node of a call's pass and microbatch; null if it has none. `op`: Forward or Backward.
  const ir::Node* node(ir::Op op, int32_t microbatch, ir::CallId call) const {
    return (op == ir::Op::Forward ? forward_
                                  : backward_)[microbatch * calls_in_model_ + call.value];
  }
  /// The group that runs a call.
  ir::GroupId group(ir::CallId call) const { return group_of_call_[call.value]; }

private:
  const ir::Graph& graph_;
  size_t calls_in_model_;
  std::vector<const ir::Node*> forward_, backward_; ///< by microbatch and call
  std::vector<ir::GroupId> group_of_call_;
  std::map<std::string, std::vector<ir::CallId>> calls_; ///< by the filter's terms on calls
};

} // namespace piper::compiler
