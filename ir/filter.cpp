// Which nodes and calls a filter matches. Called for every node and directive: allocates nothing.
#include "ir/graph.h"

#include <algorithm>
#include <charconv>

namespace piper::ir {

namespace {

bool equals(const TagIndex& index, int64_t number) {
  const int64_t* wanted = std::get_if<int64_t>(&index);
  return wanted && *wanted == number;
}

/// A call named "3" has index 3 in a filter.
bool equals(const TagIndex& index, std::string_view word) {
  if (const std::string* wanted = std::get_if<std::string>(&index))
    return *wanted == word;
  char digits[24];
  auto [end, status] = std::to_chars(digits, digits + sizeof digits, std::get<int64_t>(index));
  return word == std::string_view(digits, static_cast<size_t>(end - digits));
}

template <class Index> bool accepts(const TagMatch& match, const std::optional<Index>& index) {
  if (!index)
    return match.kind == TagMatch::Kind::Absent;
  switch (match.kind) {
  case TagMatch::Kind::Any:
    return true;
  case TagMatch::Kind::Absent:
    return false;
  case TagMatch::Kind::OneOf:
    break;
  }
  return std::any_of(match.indices.begin(), match.indices.end(),
                     [&](const TagIndex& each) { return equals(each, *index); });
}

std::optional<std::string_view> pass_of(Op op) {
  switch (op) {
  case Op::Forward:
    return "F";
  case Op::Recompute:
    return "R";
  case Op::Backward:
    return "B";
  case Op::BackwardInput:
    return "BI";
  case Op::BackwardWeight:
    return "BW";
  case Op::AllReduce:
  case Op::ReduceScatter:
    return "REDUCE";
  default:
    return std::nullopt;
  }
}

/// The last of one name counts, so that `tag` overrides an annotation.
std::optional<int64_t> tag_of(const Graph& graph, CallId call, std::string_view name) {
  const std::vector<Tag>& tags = graph.tags[call.value];
  for (auto tag = tags.rbegin(); tag != tags.rend(); ++tag)
    if (tag->name == name)
      return tag->index;
  return std::nullopt;
}

bool call_accepts(const Graph& graph, CallId call, const std::string& tag, const TagMatch& match) {
  if (tag == "call")
    return accepts(match, std::optional<std::string_view>(graph.model->call(call).name));
  return accepts(match, tag_of(graph, call, tag));
}

bool uses(const ModelCall& call, const Bucket& bucket) {
  return std::any_of(call.params.begin(), call.params.end(), [&](ParamId param) {
    return std::find(bucket.params.begin(), bucket.params.end(), param) != bucket.params.end();
  });
}

/// A bucket has a tag if all calls that use its parameters have it with one index.
bool bucket_accepts(const Graph& graph, const Bucket& bucket, const std::string& tag,
                    const TagMatch& match) {
  CallId first;
  for (size_t i = 0; i < graph.model->calls.size(); ++i) {
    CallId call(i);
    if (!uses(graph.model->call(call), bucket))
      continue;
    if (!first) {
      first = call;
      continue;
    }
    if (tag == "call" || tag_of(graph, call, tag) != tag_of(graph, first, tag))
      return match.kind == TagMatch::Kind::Absent;
  }
  if (!first)
    return match.kind == TagMatch::Kind::Absent;
  return call_accepts(graph, first, tag, match);
}

bool is_microbatch_tag(const Graph& graph, const std::string& tag) {
  return !graph.microbatch_tag.empty() && tag == graph.microbatch_tag;
}

} // namespace

bool matches_call(const Filter& filter, const Graph& graph, CallId call) {
  return std::all_of(filter.terms.begin(), filter.terms.end(), [&](const auto& term) {
    return term.first == "PASS" || is_microbatch_tag(graph, term.first) ||
           call_accepts(graph, call, term.first, term.second);
  });
}

bool matches(const Filter& filter, const Graph& graph, const Node& node) {
  const Op op = node.id.op;
  if (op == Op::Input || op == Op::Seed || op == Op::Add || op == Op::Loss ||
      op == Op::Redistribute || op == Op::Offload || op == Op::Fetch || op == Op::SendMirror ||
      op == Op::RecvMirror || op == Op::UpdateMirror)
    return false;
  const bool compute = is_compute(op);
  const bool of_bucket = is_bucket_op(op);
  // What is cheap to look up goes first: most nodes fail there.
  for (const auto& [tag, match] : filter.terms) {
    if (tag == "PASS" && !accepts(match, pass_of(op)))
      return false;
    if (is_microbatch_tag(graph, tag)) {
      std::optional<int64_t> microbatch;
      if (node.microbatch() >= 0)
        microbatch = node.microbatch();
      if (!accepts(match, microbatch))
        return false;
    }
  }
  for (const auto& [tag, match] : filter.terms) {
    if (tag == "PASS" || is_microbatch_tag(graph, tag))
      continue;
    if (compute) {
      for (const auto& chunk : node.chunks)
        for (CallId call : chunk)
          if (!call_accepts(graph, call, tag, match))
            return false;
    } else if (of_bucket) {
      if (!bucket_accepts(graph, graph.buckets[node.id.subject], tag, match))
        return false;
    } else if (match.kind != TagMatch::Kind::Absent) {
      return false;
    }
  }
  return true;
}

} // namespace piper::ir
