// What every pass shares: its type, and the ways in which passes rewrite a graph region by region.
//
// A pass is a pure function Graph -> Result<Graph> in a file of its name. It builds each region of
// its result from regions of its input and from the directives, so that a region whose inputs did
// not change has the same fingerprint and can be shared.
#pragma once

#include "compiler/compile.h"
#include "ir/graph.h"

#include <string>
#include <vector>

namespace piper::compiler {

using Pass = Result<ir::Graph> (*)(const CompileOptions& options, const ir::Graph& graph);

/// The graph with each region replaced by `rewrite(region)`, a vector of nodes. A region that comes
/// out equal is shared with the input; an empty one is dropped.
template <class Rewrite> ir::Graph map_regions(const ir::Graph& graph, Rewrite&& rewrite) {
  ir::Graph result = graph;
  result.regions.clear();
  result.regions.reserve(graph.regions.size());
  for (const ir::RegionPtr& region : graph.regions) {
    std::vector<ir::Node> nodes = rewrite(*region);
    if (nodes.empty())
      continue;
    if (nodes == region->nodes())
      result.regions.push_back(region);
    else
      result.regions.push_back(std::make_shared<ir::Region>(region->name(), std::move(nodes)));
  }
  return result;
}

/// "layer=3", or the name of its first call for a segment without annotations: what the regions,
/// buckets and messages call segment `segment`. Unique in the model.
std::vector<std::string> segment_names(const ir::ModelSpec& model);

/// Checks a directive's filter against what the graph's nodes have: a tag that nothing has and an
/// index that no node has are User errors that name the directive and the known ones.
Result<void> check_filter(const ir::Graph& graph, size_t directive, const ir::Filter& filter);

/// The calls whose own tags match, checked by `check_filter`. An empty result is a User error.
Result<std::vector<ir::CallId>> select_calls(const ir::Graph& graph, size_t directive,
                                             const ir::Filter& filter);

/// The group that is equal to this one; none if there is none.
ir::GroupId find_group(const ir::Graph& graph, const ir::Group& group);
/// The same, added if it is new.
ir::GroupId intern_group(ir::Graph& graph, ir::Group group);
/// The group of the same blocks with another layout, added if it is new.
ir::GroupId with_layout(ir::Graph& graph, ir::GroupId id, ir::Layout layout);

/// Whether the filter has a term on this tag.
const ir::TagMatch* find_term(const ir::Filter& filter, const std::string& tag);

} // namespace piper::compiler
