#include "ir/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

namespace piper::ir {

namespace {

/// "3" is the index 3, as in the original's files; "03" and "B" are words.
TagIndex make_index(std::string word) {
  int64_t number = 0;
  const char* end = word.data() + word.size();
  auto [stop, status] = std::from_chars(word.data(), end, number);
  if (status == std::errc() && stop == end && std::to_string(number) == word)
    return number;
  return word;
}

TagMatch one_of(std::vector<TagIndex> indices) {
  if (std::find(indices.begin(), indices.end(), TagIndex("*")) != indices.end())
    return TagMatch::any();
  return {TagMatch::Kind::OneOf, std::move(indices)};
}

} // namespace

Filter::Term::Term(std::string tag_, int64_t index)
    : tag(std::move(tag_)), match(one_of({TagIndex(index)})) {}
Filter::Term::Term(std::string tag_, const char* index)
    : Term(std::move(tag_), std::string(index)) {}
Filter::Term::Term(std::string tag_, std::string index)
    : tag(std::move(tag_)), match(one_of({make_index(std::move(index))})) {}
Filter::Term::Term(std::string tag_, std::vector<int64_t> indices)
    : tag(std::move(tag_)), match(one_of({indices.begin(), indices.end()})) {}
Filter::Term::Term(std::string tag_, std::vector<std::string> indices) : tag(std::move(tag_)) {
  std::vector<TagIndex> list;
  for (std::string& index : indices)
    list.push_back(make_index(std::move(index)));
  match = one_of(std::move(list));
}

Filter::Filter(std::initializer_list<Term> list) : Filter(std::vector<Term>(list)) {}

Filter::Filter(std::vector<Term> list) {
  for (Term& term : list)
    add(std::move(term));
}

void Filter::add(Term term) {
  auto at = std::lower_bound(terms.begin(), terms.end(), term.tag,
                             [](const auto& each, const auto& tag) { return each.first < tag; });
  if (at != terms.end() && at->first == term.tag)
    at->second = std::move(term.match);
  else
    terms.emplace(at, std::move(term.tag), std::move(term.match));
}

const char* Directive::op() const {
  constexpr std::array kOps = {"split",    "split_backward", "place",        "replicate", "order",
                               "overlap",  "fuse",           "recompute",    "prefetch",  "tag",
                               "schedule", "shard",          "shard_tensor", "offload",   "mirror"};
  static_assert(kOps.size() == std::variant_size_v<DirectiveBody>);
  return kOps[body.index()];
}

Strategy& Strategy::add(DirectiveBody body, Origin origin) {
  directives.push_back({std::move(body), std::move(origin)});
  return *this;
}
Strategy& Strategy::split(Filter filter, int64_t count, std::string dim) {
  return add(Split{std::move(filter), std::move(dim), count});
}
Strategy& Strategy::split_backward(Filter filter) {
  return add(SplitBackward{std::move(filter)});
}
Strategy& Strategy::place(Filter filter, std::vector<DeviceIndex> devices, std::string stream) {
  return add(Place{std::move(filter), std::move(devices), std::move(stream)});
}
Strategy& Strategy::replicate(Filter filter, std::vector<DeviceIndex> devices) {
  return add(Replicate{.filter = std::move(filter), .devices = std::move(devices)});
}
Strategy& Strategy::replicate(Replicate directive) {
  return add(std::move(directive));
}
Strategy& Strategy::shard(Filter filter, std::vector<DeviceIndex> devices, uint32_t ways) {
  return add(Shard{std::move(filter), std::move(devices), ways, {}});
}
Strategy& Strategy::shard_tensor(Filter filter, std::vector<DeviceIndex> devices, uint32_t ways,
                                 bool sequence) {
  return add(ShardTensor{std::move(filter), std::move(devices), ways, sequence, {}});
}
Strategy& Strategy::order(std::vector<std::vector<Filter>> groups) {
  return add(Order{std::move(groups)});
}
Strategy& Strategy::overlap(Filter a, Filter b) {
  return add(Overlap{std::move(a), std::move(b)});
}
Strategy& Strategy::fuse(Filter filter, bool update) {
  return add(Fuse{std::move(filter), update});
}
Strategy& Strategy::recompute(Filter filter) {
  return add(Recompute{std::move(filter)});
}
Strategy& Strategy::offload(Offload directive) {
  return add(std::move(directive));
}
Strategy& Strategy::mirror(Filter filter, int64_t copies) {
  return add(Mirror{std::move(filter), copies});
}
Strategy& Strategy::prefetch(Filter filter, int64_t distance) {
  return add(Prefetch{std::move(filter), distance});
}
Strategy& Strategy::tag(Filter filter, std::string tag_name, int64_t index) {
  return add(TagCalls{std::move(filter), std::move(tag_name), index});
}
Strategy& Strategy::schedule(std::string expression, int64_t microbatches) {
  return add(Schedule{std::move(expression), microbatches, {}});
}

std::string Origin::to_string() const {
  if (line <= 0)
    return file;
  return file.empty() ? fmt::format("line {}", line) : fmt::format("{}:{}", file, line);
}

std::string Strategy::describe(size_t directive, std::string_view op, const Origin& origin) {
  std::string out = fmt::format("directive {} ({})", directive, op);
  if (std::string place = origin.to_string(); !place.empty())
    out += ", " + place;
  return out;
}

std::string Strategy::describe(size_t directive) const {
  if (directive >= directives.size())
    return fmt::format("directive {}", directive);
  return describe(directive, directives[directive].op(), directives[directive].origin);
}

} // namespace piper::ir
