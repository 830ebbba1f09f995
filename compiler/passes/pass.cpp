#include "compiler/passes/pass.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace piper::compiler {

using namespace ir;

std::vector<std::string> segment_names(const ModelSpec& model) {
  std::vector<std::string> names;
  std::map<std::string, int> seen;
  const std::vector<uint32_t> segments = model.segments();
  for (size_t c = 0; c < model.calls.size(); ++c) {
    if (c > 0 && segments[c] == segments[c - 1])
      continue;
    std::string name;
    for (const Tag& tag : model.calls[c].annotations)
      name += fmt::format("{}{}={}", name.empty() ? "" : ",", tag.name, tag.index);
    if (name.empty())
      name = model.calls[c].name;
    if (int n = seen[name]++; n > 0)
      name += fmt::format("#{}", n + 1);
    names.push_back(std::move(name));
  }
  return names;
}

const TagMatch* find_term(const Filter& filter, const std::string& tag) {
  for (const auto& [name, match] : filter.terms)
    if (name == tag)
      return &match;
  return nullptr;
}

namespace {

std::string to_string(const TagIndex& index) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, index);
}

/// Every index that the graph has for a tag; empty if it has no such tag.
std::set<std::string> known_indices(const Graph& graph, const std::string& tag) {
  std::set<std::string> indices;
  if (tag == "PASS")
    return {"F", "B", "BI", "BW", "REDUCE"};
  if (!graph.microbatch_tag.empty() && tag == graph.microbatch_tag) {
    for (int64_t m = 0; m < graph.microbatches; ++m)
      indices.insert(std::to_string(m));
    return indices;
  }
  for (size_t c = 0; c < graph.tags.size(); ++c) {
    if (tag == "call")
      indices.insert(graph.model->calls[c].name);
    for (const Tag& t : graph.tags[c])
      if (t.name == tag)
        indices.insert(std::to_string(t.index));
  }
  return indices;
}

std::string known_tags(const Graph& graph) {
  std::set<std::string> tags = {"PASS", "call"};
  if (!graph.microbatch_tag.empty())
    tags.insert(graph.microbatch_tag);
  for (const auto& call : graph.tags)
    for (const Tag& t : call)
      tags.insert(t.name);
  return fmt::format("{}", fmt::join(tags, ", "));
}

} // namespace

namespace {
/// Whether the term asks for microbatches that there are. A schedule asks for each of them many
/// times, so this must not take longer the more there are.
bool asks_for_microbatches(const Graph& graph, const std::string& tag, const TagMatch& match) {
  return !graph.microbatch_tag.empty() && tag == graph.microbatch_tag &&
         std::all_of(match.indices.begin(), match.indices.end(), [&](const TagIndex& index) {
           const auto* number = std::get_if<int64_t>(&index);
           return number && *number >= 0 && *number < graph.microbatches;
         });
}
} // namespace

Result<void> check_filter(const Graph& graph, size_t directive, const Filter& filter) {
  for (const auto& [tag, match] : filter.terms) {
    if (asks_for_microbatches(graph, tag, match))
      continue;
    const std::set<std::string> known = known_indices(graph, tag);
    if (known.empty()) {
      if (match.kind == TagMatch::Kind::Absent)
        continue;
      if (tag == "MB")
        return user_error(
            fmt::format("the filter {} asks for microbatches, but no split makes any",
                        filter.to_json()),
            graph.strategy->describe(directive),
            R"(add {"op": "split", "filter": {}, "dim_name": "MB", "num_microbatches": N})");
      return user_error(fmt::format("unknown tag '{}' in the filter {}", tag, filter.to_json()),
                        graph.strategy->describe(directive),
                        fmt::format("the tags of this model are: {}", known_tags(graph)));
    }
    for (const TagIndex& index : match.indices) {
      if (known.contains(to_string(index)))
        continue;
      // Few indices are worth listing; of many, the ends say enough.
      std::string list = fmt::format("{}", fmt::join(known, ", "));
      if (known.size() > 12)
        list = fmt::format("{} of them", known.size());
      return user_error(fmt::format("the filter {} matches nothing: no {} is {}", filter.to_json(),
                                    tag, to_string(index)),
                        graph.strategy->describe(directive),
                        fmt::format("'{}' has the indices {}", tag, list));
    }
  }
  return {};
}

Result<std::vector<CallId>> select_calls(const Graph& graph, size_t directive,
                                         const Filter& filter) {
  PIPER_CHECK_OK(check_filter(graph, directive, filter));
  std::vector<CallId> calls;
  for (size_t c = 0; c < graph.model->calls.size(); ++c)
    if (matches_call(filter, graph, CallId(c)))
      calls.push_back(CallId(c));
  if (calls.empty())
    return user_error(fmt::format("the filter {} matches nothing", filter.to_json()),
                      graph.strategy->describe(directive),
                      "each of its tags exists, but no call has all of them at once");
  return calls;
}

GroupId find_group(const Graph& graph, const Group& group) {
  const auto found = std::find(graph.groups.begin(), graph.groups.end(), group);
  return found == graph.groups.end() ? GroupId() : GroupId(found - graph.groups.begin());
}

GroupId with_layout(Graph& graph, GroupId id, Layout layout) {
  Group group = graph.groups[id.value];
  group.layout = layout;
  return intern_group(graph, std::move(group));
}

GroupId intern_group(Graph& graph, Group group) {
  if (const GroupId known = find_group(graph, group))
    return known;
  graph.groups.push_back(std::move(group));
  return GroupId(graph.groups.size() - 1);
}

} // namespace piper::compiler
