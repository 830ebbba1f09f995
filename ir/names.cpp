#include "ir/names.h"

#include <fmt/format.h>

#include <array>

namespace piper::ir::text {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

struct KindPrefix {
  ValueKind kind;
  const char* prefix;
};
// In the order of ValueKind, which starts with Activation (no prefix).
constexpr std::array<KindPrefix, 12> kPrefixes = {{{ValueKind::Gradient, "d."},
                                                   {ValueKind::GradientPart, "d."},
                                                   {ValueKind::Saved, "saved."},
                                                   {ValueKind::Deferred, "deferred."},
                                                   {ValueKind::WeightGrad, "wgrad."},
                                                   {ValueKind::Reduced, "reduced."},
                                                   {ValueKind::Committed, "committed"},
                                                   {ValueKind::Updated, "updated."},
                                                   {ValueKind::Gathered, "gathered."},
                                                   {ValueKind::Zeroed, "zeroed."},
                                                   {ValueKind::Scattered, "scattered."},
                                                   {ValueKind::Mirrored, "mirrored."}}};

/// Whether the part is a number: which window of a bucket, or where a value is.
bool has_numbered_part(ValueKind kind) {
  return kind == ValueKind::Reduced || kind == ValueKind::Updated || kind == ValueKind::Gathered ||
         kind == ValueKind::Zeroed || kind == ValueKind::Scattered || is_movable(kind);
}

struct BucketWord {
  bool Bucket::*member;
  const char* word;
};
constexpr std::array<BucketWord, 6> kBucketWords = {
    {{&Bucket::shard_optimizer, "shard_optimizer"},
     {&Bucket::shard_grads, "shard_grads"},
     {&Bucket::shard_params, "shard_params"},
     {&Bucket::offload_optimizer, "offload_optimizer"},
     {&Bucket::offload_params, "offload_params"},
     {&Bucket::fused_update, "fused_update"}}};

/// Whether a bare activation of that name would read as something else.
bool reads_as_kind(std::string_view name) {
  for (const KindPrefix& each : kPrefixes)
    if (name.starts_with(each.prefix))
      return true;
  return false;
}

template <class Item>
void append_item(std::string& out, const std::vector<Item>* items, char letter, uint32_t id) {
  if (!items) {
    append_numbered(out, letter, id);
  } else if (id < items->size()) {
    append_name(out, (*items)[id].name);
  } else {
    out += '?';
    append_int(out, id);
  }
}

/// A name of the table, "?7", or a letter and a number where there is no table.
uint32_t read_item(Reader& in, const NameTable* table, char letter, const char* what) {
  if (in.accept("?"))
    return in.index(what);
  if (!table)
    return read_numbered(in, letter, what);
  std::string name = in.name(what);
  auto found = table->find(name);
  if (found == table->end())
    in.fail(fmt::format("unknown name \"{}\": expected {}", name, what));
  return found->second;
}

} // namespace

void Names::append_value(std::string& out, uint32_t id) const {
  append_item(out, model ? &model->values : nullptr, 'v', id);
}
void Names::append_call(std::string& out, uint32_t id) const {
  append_item(out, model ? &model->calls : nullptr, 'c', id);
}
void Names::append_bucket(std::string& out, uint32_t id) const {
  append_item(out, model ? buckets : nullptr, 'b', id);
}

uint32_t Lookup::value(Reader& in) const {
  return read_item(in, values, 'v', "a value");
}
uint32_t Lookup::call(Reader& in) const {
  return read_item(in, calls, 'c', "a call");
}
uint32_t Lookup::bucket(Reader& in) const {
  return read_item(in, buckets, 'b', "a bucket");
}

void append_subject(std::string& out, const Names& names, ValueKind kind, uint32_t subject,
                    uint32_t part) {
  if (kind != ValueKind::Activation)
    out += kPrefixes[static_cast<size_t>(kind) - 1].prefix;
  switch (kind) {
  case ValueKind::Activation:
    if (names.model && subject < names.model->values.size() &&
        reads_as_kind(names.model->values[subject].name)) {
      append_quoted(out, names.model->values[subject].name);
      break;
    }
    [[fallthrough]];
  case ValueKind::Gradient:
  case ValueKind::GradientPart:
    names.append_value(out, subject);
    break;
  case ValueKind::Saved:
  case ValueKind::Deferred:
  case ValueKind::WeightGrad:
    names.append_call(out, subject);
    break;
  case ValueKind::Reduced:
  case ValueKind::Updated:
  case ValueKind::Gathered:
  case ValueKind::Zeroed:
  case ValueKind::Scattered:
  case ValueKind::Mirrored:
    names.append_bucket(out, subject);
    break;
  case ValueKind::Committed:
    if (subject != 0) {
      out += '.';
      append_int(out, subject);
    }
    break;
  }
  // Only a part of a gradient has one; "[]" keeps the two kinds of gradient apart without it.
  if (part != kNone && has_numbered_part(kind)) {
    out += '#';
    append_int(out, part);
  } else if (part != kNone || kind == ValueKind::GradientPart) {
    out += '[';
    if (part != kNone)
      names.append_call(out, part);
    out += ']';
  }
}

void read_subject(Reader& in, const Lookup& lookup, ValueKind& kind, uint32_t& subject,
                  uint32_t& part) {
  kind = ValueKind::Activation;
  if (!in.next_is_quote())
    for (const KindPrefix& each : kPrefixes)
      if (each.kind != ValueKind::GradientPart && in.accept_prefix(each.prefix)) {
        kind = each.kind;
        break;
      }
  switch (kind) {
  case ValueKind::Activation:
  case ValueKind::Gradient:
  case ValueKind::GradientPart:
    subject = lookup.value(in);
    break;
  case ValueKind::Saved:
  case ValueKind::Deferred:
  case ValueKind::WeightGrad:
    subject = lookup.call(in);
    break;
  case ValueKind::Reduced:
  case ValueKind::Updated:
  case ValueKind::Gathered:
  case ValueKind::Zeroed:
  case ValueKind::Scattered:
  case ValueKind::Mirrored:
    subject = lookup.bucket(in);
    break;
  case ValueKind::Committed:
    subject = in.accept_adjacent('.') ? in.index("a number") : 0;
    break;
  }
  part = kNone;
  if (has_numbered_part(kind) && in.accept_adjacent('#')) {
    part = in.index("which time");
  } else if (in.accept_adjacent('[')) {
    if (kind == ValueKind::Gradient)
      kind = ValueKind::GradientPart;
    if (!in.accept("]")) {
      part = lookup.call(in);
      in.expect("]");
    }
  }
}

void append_numbered(std::string& out, char letter, uint32_t number) {
  out += letter;
  append_int(out, number);
}

uint32_t read_numbered(Reader& in, char letter, const char* what) {
  std::string_view word = in.bare(what);
  uint32_t number = 0;
  const char* end = word.data() + word.size();
  if (word[0] == letter) {
    auto [stop, status] = std::from_chars(word.data() + 1, end, number);
    if (status == std::errc() && stop == end)
      return number;
  }
  in.fail(fmt::format("expected {} like {}3, found \"{}\"", what, letter, word));
}

void append_group(std::string& out, GroupId group) {
  if (group)
    append_numbered(out, 'g', group.value);
  else
    out += '-';
}

GroupId read_group(Reader& in) {
  if (in.accept("-"))
    return {};
  return GroupId(read_numbered(in, 'g', "a group"));
}

void append_microbatch(std::string& out, int32_t microbatch) {
  out += '@';
  if (microbatch == kNoMicrobatch)
    out += '-';
  else
    append_int(out, microbatch);
}

int32_t read_microbatch(Reader& in) {
  if (in.accept("-"))
    return kNoMicrobatch;
  uint32_t microbatch = in.index("a microbatch");
  if (microbatch > INT32_MAX)
    in.fail(fmt::format("microbatch {} is out of range", microbatch));
  return static_cast<int32_t>(microbatch);
}

void append_ref(std::string& out, const Names& names, const ValueRef& ref,
                int32_t expected_microbatch, GroupId expected_at) {
  append_subject(out, names, ref.kind, ref.subject, ref.part);
  if (ref.microbatch != expected_microbatch) {
    out += ' ';
    append_microbatch(out, ref.microbatch);
  }
  if (ref.at != expected_at) {
    out += " on ";
    append_group(out, ref.at);
  }
}

ValueRef read_ref(Reader& in, const Lookup& lookup, int32_t expected_microbatch,
                  GroupId expected_at) {
  ValueRef ref;
  read_subject(in, lookup, ref.kind, ref.subject, ref.part);
  ref.microbatch = in.accept("@") ? read_microbatch(in) : expected_microbatch;
  ref.at = in.accept("on") ? read_group(in) : expected_at;
  return ref;
}

namespace {
bool comes_from_peer(Op op) {
  return op == Op::Recv || op == Op::Redistribute || op == Op::RecvMirror;
}
} // namespace

void append_id(std::string& out, const Names& names, const NodeId& id) {
  out += to_string(id.op);
  if (id.op != Op::Commit || id.subject != 0)
    out += ' ';
  if (is_compute(id.op))
    names.append_call(out, id.subject);
  else if (is_bucket_op(id.op)) {
    names.append_bucket(out, id.subject);
    if (id.part != kNone) {
      out += '#';
      append_int(out, id.part);
    }
  } else if (id.op != Op::Commit)
    append_subject(out, names, id.kind, id.subject, id.part);
  else if (id.subject != 0)
    append_int(out, id.subject);
  if (id.microbatch != kNoMicrobatch) {
    out += ' ';
    append_microbatch(out, id.microbatch);
  }
  if (id.at) {
    out += " on ";
    append_group(out, id.at);
  }
  if (id.peer) {
    out += comes_from_peer(id.op) ? " from " : " to ";
    append_group(out, id.peer);
  }
}

NodeId read_id(Reader& in, const Lookup& lookup) {
  NodeId id;
  std::string_view word = in.bare("a node");
  auto op = parse_op(word);
  if (!op)
    in.fail(fmt::format("there is no node \"{}\"", word));
  id.op = *op;
  if (is_compute(id.op))
    id.subject = lookup.call(in);
  else if (is_bucket_op(id.op)) {
    id.subject = lookup.bucket(in);
    if (in.accept_adjacent('#'))
      id.part = in.index("which time");
  } else if (id.op != Op::Commit)
    read_subject(in, lookup, id.kind, id.subject, id.part);
  else if (in.next_is_digit())
    id.subject = in.index("a number");
  if (in.accept("@"))
    id.microbatch = read_microbatch(in);
  if (in.accept("on"))
    id.at = read_group(in);
  if (in.accept(comes_from_peer(id.op) ? "from" : "to"))
    id.peer = read_group(in);
  return id;
}

void append_devices(std::string& out, const std::vector<DeviceIndex>& devices) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i)
      out += ", ";
    append_int(out, devices[i]);
  }
}

std::vector<DeviceIndex> read_devices(Reader& in) {
  std::vector<DeviceIndex> out;
  do {
    out.push_back(in.index("a device"));
  } while (in.accept(","));
  return out;
}

void append_groups(std::string& out, const std::vector<Group>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    out += "group ";
    append_group(out, GroupId(i));
    if (!groups[i].devices.empty()) {
      out += " devices ";
      append_devices(out, groups[i].devices);
    }
    if (groups[i].replicated)
      out += " replicated";
    if (groups[i].ways != 1) {
      out += " ways ";
      append_int(out, groups[i].ways);
    }
    if (groups[i].layout != Layout::Whole) {
      out += " layout ";
      out += to_string(groups[i].layout);
    }
    if (groups[i].outside != 1) {
      out += " outside ";
      append_int(out, groups[i].outside);
    }
    out += '\n';
  }
}

Group read_group_line(Reader& in, size_t expected) {
  if (read_group(in) != GroupId(expected))
    in.fail(fmt::format("groups are numbered from 0 in order: expected g{}", expected));
  Group group;
  if (in.accept("devices"))
    group.devices = read_devices(in);
  group.replicated = in.accept("replicated");
  if (in.accept("ways"))
    group.ways = in.index("a number of ranks");
  if (in.accept("layout")) {
    std::string_view word = in.bare("a layout");
    auto layout = parse_layout(word);
    if (!layout)
      in.fail(fmt::format("there is no layout \"{}\"", word));
    group.layout = *layout;
  }
  if (in.accept("outside"))
    group.outside = in.index("a number of ranks");
  in.end_line();
  return group;
}

void append_comment(std::string& out, size_t line_start, std::string_view comment) {
  constexpr size_t kColumn = 64;
  const size_t length = out.size() - line_start;
  out.append(length < kColumn ? kColumn - length : 1, ' ');
  out += "# ";
  // A name may hold anything; a comment ends with its line.
  for (char c : comment)
    out += c == '\n' ? ' ' : c;
}

void append_buckets(std::string& out, const std::vector<Bucket>& buckets, const ModelSpec* model,
                    const ModelSpec* comments) {
  for (const Bucket& bucket : buckets) {
    out += "bucket ";
    append_name(out, bucket.name);
    out += " on ";
    append_group(out, bucket.group);
    out += ' ';
    out += to_string(bucket.dtype);
    out += " numel ";
    append_int(out, bucket.numel);
    if (bucket.shards != 1) {
      out += " shards ";
      append_int(out, bucket.shards);
    }
    for (const auto& [member, word] : kBucketWords)
      if (bucket.*member)
        out += fmt::format(" {}", word);
    for (size_t i = 0; i < bucket.mirrors.size(); ++i) {
      out += i ? ", " : " mirrors ";
      append_group(out, bucket.mirrors[i]);
    }
    out += '\n';
    for (size_t i = 0; i < bucket.params.size(); ++i) {
      const size_t start = out.size();
      const uint32_t param = bucket.params[i].value;
      out += "  param ";
      append_item(out, model ? &model->params : nullptr, 'p', param);
      out += " at ";
      append_int(out, i < bucket.offsets.size() ? bucket.offsets[i] : -1);
      if (comments && param < comments->params.size())
        append_comment(out, start, comments->params[param].name);
      out += '\n';
    }
  }
}

Bucket read_bucket_line(Reader& in) {
  Bucket bucket;
  bucket.name = in.name("a bucket's name");
  in.expect("on");
  bucket.group = read_group(in);
  bucket.dtype = read_dtype(in);
  in.expect("numel");
  bucket.numel = in.integer("a number of elements");
  if (in.accept("shards"))
    bucket.shards = in.index("a number of shards");
  for (const auto& [member, word] : kBucketWords)
    bucket.*member = in.accept(word);
  if (in.accept("mirrors"))
    do {
      bucket.mirrors.push_back(read_group(in));
    } while (in.accept(","));
  in.end_line();
  return bucket;
}

void read_bucket_param(Reader& in, Bucket& bucket, const NameTable* params) {
  bucket.params.push_back(ParamId(read_item(in, params, 'p', "a parameter")));
  in.expect("at");
  bucket.offsets.push_back(in.integer("an offset"));
  in.end_line();
}

void append_chunks(std::string& out, const Names& names,
                   const std::vector<std::vector<CallId>>& chunks) {
  out += '[';
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (i)
      out += " | ";
    for (size_t j = 0; j < chunks[i].size(); ++j) {
      if (j)
        out += ' ';
      names.append_call(out, chunks[i][j].value);
    }
  }
  out += ']';
}

std::vector<std::vector<CallId>> read_chunks(Reader& in, const Lookup& lookup) {
  std::vector<std::vector<CallId>> chunks;
  if (in.accept("]"))
    return chunks;
  chunks.emplace_back();
  while (!in.accept("]")) {
    if (in.accept("|"))
      chunks.emplace_back();
    else
      chunks.back().push_back(CallId(lookup.call(in)));
  }
  return chunks;
}

} // namespace piper::ir::text
