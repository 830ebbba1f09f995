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

  const ir::GraphIndex& index() const { return index_; }
  /// The group that runs a call.
  ir::GroupId group(ir::CallId call) const { return group_of_call_[call.value]; }

private:
  const ir::Graph& graph_;
  ir::GraphIndex index_;
  std::vector<ir::GroupId> group_of_call_;
  std::map<std::string, std::vector<ir::CallId>> calls_; ///< by the filter's terms on calls
};

} // namespace piper::compiler
