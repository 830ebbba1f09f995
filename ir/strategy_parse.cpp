// The JSON spelling of strategies: reading, and what is wrong with a file.
#include "ir/counting_iterator.h"
#include "ir/strategy.h"
#include "ir/suggest.h"
#include "ir/text.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

namespace piper::ir {

namespace {

using Json = nlohmann::ordered_json;
using text::ParseFailure;

const std::vector<std::string> kOps = {
    "split",    "split_backward", "place",        "replicate", "order",
    "overlap",  "fuse",           "recompute",    "prefetch",  "tag",
    "schedule", "shard",          "shard_tensor", "offload",   "mirror"};

struct Document {
  Json json;
  /// The line of each object, in the order of the text, by its depth.
  std::vector<std::vector<int>> object_lines;
};

/// Throws ParseFailure where the text is no JSON.
Document parse_json(std::string_view text, const std::string& file) {
  const std::string in_file = file.empty() ? "line " : file + ":";
  Document document;
  TextPosition position;
  std::vector<std::set<std::string>> keys; // of the objects that are open
  auto on_event = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) {
      if (document.object_lines.size() <= static_cast<size_t>(depth))
        document.object_lines.resize(static_cast<size_t>(depth) + 1);
      document.object_lines[static_cast<size_t>(depth)].push_back(position.line);
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second)
        throw ParseFailure{user_error(fmt::format("the key \"{}\" stands twice in one object", key),
                                      in_file + std::to_string(position.line))};
    }
    return true;
  };
  const CountingIterator begin{text.data(), &position}, end{text.data() + text.size(), &position};
  try {
    document.json = Json::parse(begin, end, on_event);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 5: syntax error while …"
    const std::string_view what = error.what();
    std::string place = in_file + std::to_string(position.line);
    int at_line = 0, column = 0;
    if (size_t at = what.find("at line ");
        at != what.npos &&
        std::sscanf(what.data() + at, "at line %d, column %d", &at_line, &column) == 2)
      place = file.empty() ? fmt::format("line {}, column {}", at_line, column)
                           : fmt::format("{}:{}:{}", file, at_line, column);
    const size_t text_at = what.find(column ? ": " : "] ");
    throw ParseFailure{user_error(
        fmt::format("malformed JSON: {}", what.substr(text_at == what.npos ? 0 : text_at + 2)),
        place)};
  }
  return document;
}

std::string quoted_list(const std::vector<std::string>& words) {
  return fmt::format("\"{}\"", fmt::join(words, "\", \""));
}

/// One directive's object: typed access to its keys, with errors that name key and directive.
class Fields {
public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  [[noreturn]] void fail(std::string message, std::string hint = {}) const {
    throw ParseFailure{user_error(std::move(message), where_, std::move(hint))};
  }
  [[noreturn]] void fail_type(const std::string& key, const char* wanted, const Json& found) const {
    fail(fmt::format("\"{}\" must be {}, found {}", key, wanted, found.dump()));
  }

  void allow_only(std::vector<std::string> keys) const {
    keys.insert(keys.begin(), "op");
    for (const auto& [key, value] : object_.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        std::string near = closest(key, keys);
        fail(fmt::format("unknown key \"{}\"", key),
             fmt::format("{}known keys: {}",
                         near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near),
                         quoted_list(keys)));
      }
  }

  /// The value of the first of `keys` that is there; null if none is, or it is null.
  const Json* find(std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (auto it = object_.find(key); it != object_.end() && !it->is_null()) {
        key_ = key;
        return &*it;
      }
    return nullptr;
  }
  const Json& get(std::initializer_list<const char*> keys) const {
    if (const Json* found = find(keys))
      return *found;
    fail(fmt::format("the key \"{}\" is missing", *keys.begin()));
  }

  std::string string(const char* key) const { return as_string(get({key})); }
  std::string string_or_empty(const char* key) const {
    const Json* found = find({key});
    return found ? as_string(*found) : std::string();
  }
  std::string as_string(const Json& value) const {
    if (!value.is_string())
      fail_type(key_, "a string", value);
    return value.get<std::string>();
  }
  std::vector<std::string> strings(const char* key) const {
    const Json& list = get({key});
    std::vector<std::string> out;
    if (!list.is_array())
      fail_type(key, "a list of strings", list);
    for (const Json& each : list)
      out.push_back(as_string(each));
    return out;
  }
  bool boolean(const char* key) const {
    const Json* found = find({key});
    if (found && !found->is_boolean())
      fail_type(key, "true or false", *found);
    return found && found->get<bool>();
  }
  int64_t integer(const Json& value, int64_t least, const char* wanted) const {
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
    if (!fits || value.get<int64_t>() < least)
      fail_type(key_, wanted, value);
    return value.get<int64_t>();
  }

  Filter filter(const char* key) const { return as_filter(get({key})); }
  Filter as_filter(const Json& value) const {
    if (!value.is_object())
      fail_type(key_, "a filter like {\"layer\": 2}", value);
    std::vector<Filter::Term> terms;
    for (const auto& [tag, index] : value.items()) {
      Filter::Term& term = terms.emplace_back(tag, int64_t{0});
      term.match = match(tag, index);
    }
    return Filter(std::move(terms));
  }

  std::vector<DeviceIndex> devices() const {
    const Json& value = get({"devices", "device"});
    const Json list = value.is_array() ? value : Json::array({value});
    if (list.empty())
      fail_type(key_, "a device or a list of devices", value);
    std::vector<DeviceIndex> out;
    for (const Json& each : list) {
      if (!each.is_number_unsigned() || each.get<uint64_t>() >= UINT32_MAX)
        fail_type(key_, "a device or a list of devices (0, 1, …)", value);
      out.push_back(each.get<DeviceIndex>());
    }
    return out;
  }

private:
  TagMatch match(const std::string& tag, const Json& value) const {
    if (value.is_null())
      return {TagMatch::Kind::Absent, {}};
    const Json list = value.is_array() ? value : Json::array({value});
    TagMatch out{TagMatch::Kind::OneOf, {}};
    for (const Json& each : list) {
      // Term knows how an index reads: "3" is 3, "*" is any.
      TagMatch one;
      if (each.is_string())
        one = Filter::Term(tag, each.get<std::string>()).match;
      else if (each.is_number_integer())
        one = Filter::Term(tag, each.get<int64_t>()).match;
      else
        fail_type(tag, "a number, a word, \"*\", null or a list of numbers and words", value);
      if (one.kind == TagMatch::Kind::Any)
        return one;
      if (tag == "PASS")
        check_pass(one.indices[0]);
      out.indices.push_back(std::move(one.indices[0]));
    }
    if (out.indices.empty())
      fail(fmt::format("the list of \"{}\" is empty", tag), "\"*\" stands for any index");
    return out;
  }

  void check_pass(const TagIndex& index) const {
    const std::string* pass = std::get_if<std::string>(&index);
    if (pass &&
        (*pass == "F" || *pass == "B" || *pass == "BI" || *pass == "BW" || *pass == "REDUCE"))
      return;
    fail(fmt::format("unknown PASS {}",
                     pass ? '"' + *pass + '"' : std::to_string(std::get<int64_t>(index))),
         "known: \"F\", \"B\", \"BI\", \"BW\", \"REDUCE\"");
  }

  const Json& object_;
  std::string where_;
  mutable std::string key_; // of the last look-up
};

Replicate read_replicate(const Fields& in) {
  in.allow_only({"filter", "devices", "device", "reduce_stream", "gather_stream", "bucket_mb",
                 "bucket_size", "shard_optimizer", "shard_grads", "shard_params", "shard_within"});
  Replicate out{.filter = in.filter("filter"), .devices = in.devices()};
  out.shard_optimizer = in.boolean("shard_optimizer");
  out.shard_grads = in.boolean("shard_grads");
  out.shard_params = in.boolean("shard_params");
  if (const Json* within = in.find({"shard_within"}))
    out.shard_within = in.integer(*within, 1, "a number of replicas, 1 or more");
  if (const Json* size = in.find({"bucket_mb", "bucket_size"})) {
    if (!size->is_number() || size->get<double>() <= 0)
      in.fail_type("bucket_mb", "a size in MB above 0", *size);
    out.bucket_mb = size->get<double>();
  }
  out.reduce_stream = in.string_or_empty("reduce_stream");
  out.gather_stream = in.string_or_empty("gather_stream");
  return out;
}

Offload read_offload(const Fields& in) {
  in.allow_only({"filter", "what"});
  Offload out{.filter = in.filter("filter")};
  if (!in.find({"what"}))
    return out;
  out.activations = false;
  const std::vector<std::string> what = in.strings("what");
  for (const std::string& each : what) {
    const auto known = std::find_if(kOffloaded.begin(), kOffloaded.end(),
                                    [&](const auto& kind) { return each == kind.first; });
    if (known == kOffloaded.end())
      in.fail(fmt::format("\"{}\" cannot be offloaded", each),
              "\"what\" is a list of \"activations\", \"optimizer\", \"params\"");
    out.*known->second = true;
  }
  if (what.empty())
    in.fail("\"what\" is empty", "name what is offloaded, or leave the directive out");
  return out;
}

/// What Shard and ShardTensor share.
template <class Sharding> Sharding read_sharding(const Fields& in) {
  Sharding out{.filter = in.filter("filter"), .devices = in.devices()};
  if (const Json* ways = in.find({"ways"}))
    out.ways = static_cast<uint32_t>(in.integer(*ways, 1, "a number of 1 or more"));
  out.stream = in.string_or_empty("stream");
  return out;
}

Order read_order(const Fields& in) {
  in.allow_only({"filters"});
  const Json& groups = in.get({"filters"});
  if (!groups.is_array() || groups.size() < 2)
    in.fail_type("filters", "a list of two groups of filters or more", groups);
  Order out;
  for (const Json& group : groups) {
    std::vector<Filter>& list = out.groups.emplace_back();
    if (group.is_array())
      for (const Json& filter : group)
        list.push_back(in.as_filter(filter));
    else
      list.push_back(in.as_filter(group));
    if (list.empty())
      in.fail("a group of \"filters\" is empty", "{} is the filter that matches everything");
  }
  return out;
}

DirectiveBody read_body(const std::string& op, const Fields& in) {
  if (op == "split") {
    in.allow_only({"filter", "dim_name", "dim", "num_microbatches", "n"});
    Split out{.filter = in.filter("filter")};
    if (const Json* dim = in.find({"dim_name", "dim"}))
      out.dim = in.as_string(*dim);
    out.count = in.integer(in.get({"num_microbatches", "n"}), 1, "a number of 1 or more");
    return out;
  }
  if (op == "split_backward") {
    in.allow_only({"filter"});
    return SplitBackward{in.filter("filter")};
  }
  if (op == "place") {
    in.allow_only({"filter", "devices", "device", "stream"});
    return Place{in.filter("filter"), in.devices(), in.string_or_empty("stream")};
  }
  if (op == "replicate")
    return read_replicate(in);
  if (op == "shard") {
    in.allow_only({"filter", "devices", "device", "ways", "stream"});
    return read_sharding<Shard>(in);
  }
  if (op == "shard_tensor") {
    in.allow_only({"filter", "devices", "device", "ways", "stream", "sequence"});
    auto out = read_sharding<ShardTensor>(in);
    out.sequence = in.boolean("sequence");
    return out;
  }
  if (op == "order")
    return read_order(in);
  if (op == "overlap") {
    in.allow_only({"a", "b"});
    return Overlap{in.filter("a"), in.filter("b")};
  }
  if (op == "fuse") {
    in.allow_only({"filter", "update"});
    return Fuse{in.filter("filter"), in.boolean("update")};
  }
  if (op == "recompute") {
    in.allow_only({"filter"});
    return Recompute{in.filter("filter")};
  }
  if (op == "offload")
    return read_offload(in);
  if (op == "mirror") {
    in.allow_only({"filter", "copies"});
    Mirror out{.filter = in.filter("filter")};
    if (const Json* copies = in.find({"copies"}))
      out.copies = in.integer(*copies, 1, "a number of 1 or more");
    return out;
  }
  if (op == "prefetch") {
    in.allow_only({"filter", "distance"});
    return Prefetch{in.filter("filter"),
                    in.integer(in.get({"distance"}), 0, "a number of 0 or more")};
  }
  if (op == "tag") {
    in.allow_only({"filter", "name", "index"});
    return TagCalls{in.filter("filter"), in.string("name"),
                    in.integer(in.get({"index"}), INT64_MIN, "a number")};
  }
  if (op == "schedule") {
    in.allow_only({"name", "microbatches", "table"});
    Schedule out{.expression = in.string("name")};
    if (const Json* count = in.find({"microbatches"}))
      out.microbatches = in.integer(*count, 0, "a number of 0 or more");
    if (in.find({"table"}))
      out.table = in.strings("table");
    return out;
  }
  std::string near = closest(op, kOps);
  in.fail(fmt::format("unknown directive \"{}\"", op),
          fmt::format("{}known directives: {}",
                      near.empty() ? "" : fmt::format("did you mean \"{}\"? ", near),
                      quoted_list(kOps)));
}

Strategy read_strategy(std::string_view text, const std::string& file) {
  const Document document = parse_json(text, file);
  const Origin whole{file, 0};
  Strategy out;
  out.name = file;
  const Json* list = &document.json;
  size_t depth = 1; // of the directives' objects
  if (list->is_object()) {
    Fields top(*list, whole.to_string());
    for (const auto& [key, value] : list->items())
      if (key != "name" && key != "directives")
        top.fail(fmt::format("unknown key \"{}\"", key),
                 "a strategy is a list of directives, or {\"name\": …, \"directives\": […]}");
    if (std::string name = top.string_or_empty("name"); !name.empty())
      out.name = name;
    list = &top.get({"directives"});
    depth = 2;
  }
  if (!list->is_array())
    throw ParseFailure{
        user_error(fmt::format("a strategy must be a list of directives, found {}", list->dump()),
                   whole.to_string(), "[{\"op\": \"place\", \"filter\": {}, \"device\": 0}]")};
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& each = (*list)[i];
    if (!each.is_object())
      throw ParseFailure{
          user_error(fmt::format("directive {} must be an object like {{\"op\": …}}, found {}", i,
                                 each.dump()),
                     whole.to_string())};
    const Origin origin{file, document.object_lines[depth][i]};
    const std::string op = Fields(each, Strategy::describe(i, "?", origin)).string("op");
    out.add(read_body(op, Fields(each, Strategy::describe(i, op, origin))), origin);
  }
  return out;
}

} // namespace

Result<Strategy> Strategy::parse(std::string_view json, const std::string& file) {
  try {
    return read_strategy(json, file);
  } catch (ParseFailure& failure) {
    return std::move(failure.error);
  }
}

Result<Strategy> Strategy::load(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  in.peek(); // a folder opens, but does not read
  if (!in.is_open() || in.bad())
    return user_error(fmt::format("cannot read the strategy: {}", std::strerror(errno)), path,
                      "name a JSON file of directives");
  std::ostringstream content;
  content << in.rdbuf();
  return parse(content.str(), path);
}

} // namespace piper::ir
