// The text form of plan sets. It stands alone: ids are numbers, names are comments.
#include "ir/names.h"
#include "ir/plan.h"

#include <fmt/format.h>

namespace piper::ir {

namespace {

using text::Lookup;
using text::Names;
using text::Reader;

const Names kNumbers{};
const Lookup kByNumber{};

template <class IdType>
void append_ids(std::string& out, char letter, const std::vector<IdType>& ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i)
      out += ", ";
    if (ids[i])
      text::append_numbered(out, letter, ids[i].value);
    else
      out += '-';
  }
}

template <class IdType> std::vector<IdType> read_ids(Reader& in, char letter, const char* what) {
  std::vector<IdType> out;
  do {
    out.push_back(in.accept("-") ? IdType() : IdType(text::read_numbered(in, letter, what)));
  } while (in.accept(","));
  return out;
}

std::vector<SlotId> read_slots_in_parentheses(Reader& in) {
  if (in.accept(")"))
    return {};
  auto out = read_ids<SlotId>(in, 's', "a slot");
  in.expect(")");
  return out;
}

void append_state(std::string& out, const char* word, const StateRange& range) {
  if (range == StateRange{})
    return;
  fmt::format_to(std::back_inserter(out), " {} epoch {} b{} {} begin {} count {}", word,
                 range.epoch, range.bucket.value, to_string(range.kind), range.begin, range.count);
  if (range.mirror)
    out += fmt::format(" mirror {}", range.mirror);
}

StateRange read_state(Reader& in) {
  StateRange range;
  in.expect("epoch");
  range.epoch = in.index("an epoch");
  range.bucket = BucketId(text::read_numbered(in, 'b', "a bucket"));
  std::string_view word = in.bare("an array of a bucket");
  auto kind = parse_state_kind(word);
  if (!kind)
    in.fail(fmt::format("a bucket has no array \"{}\"", word));
  range.kind = *kind;
  in.expect("begin");
  range.begin = in.integer("an element");
  in.expect("count");
  range.count = in.integer("a number of elements");
  if (in.accept("mirror"))
    range.mirror = in.index("a mirror, counted from 1");
  return range;
}

const char* group_word(Opcode op) {
  switch (op) {
  case Opcode::Send:
  case Opcode::SendMirror:
    return " to ";
  case Opcode::Recv:
  case Opcode::RecvMirror:
  case Opcode::Redistribute:
    return " from ";
  default:
    return " over ";
  }
}

void append_instruction(std::string& out, const Plan& plan, const Instruction& each) {
  out += "  ";
  out += to_string(each.op);
  if (each.edge) {
    out += " edge ";
    text::append_int(out, each.edge.value);
  }
  if (!each.chunks.empty()) {
    out += ' ';
    text::append_chunks(out, kNumbers, each.chunks);
  }
  if (each.microbatch != kNoMicrobatch) {
    out += ' ';
    text::append_microbatch(out, each.microbatch);
  }
  if (!each.buckets.empty()) {
    out += " buckets ";
    append_ids(out, 'b', each.buckets);
  }
  if (each.self) {
    out += " as ";
    text::append_group(out, each.self);
  }
  if (each.group) {
    out += group_word(each.op);
    text::append_group(out, each.group);
  }
  if (!each.inputs.empty()) {
    out += " (";
    append_ids(out, 's', each.inputs);
    out += ')';
  }
  if (!each.outputs.empty()) {
    out += " -> (";
    append_ids(out, 's', each.outputs);
    out += ')';
  }
  if (each.scale != 1) {
    out += " scale ";
    text::append_double(out, each.scale);
  }
  append_state(out, "source", each.source);
  append_state(out, "target", each.target);
  if (each.device != 0 || each.op == Opcode::SendState || each.op == Opcode::RecvState) {
    out += " device ";
    text::append_int(out, each.device);
  }
  if (!each.frees.empty()) {
    out += " free ";
    append_ids(out, 's', each.frees);
  }
  if (each.stream != 0) {
    out += " stream ";
    if (each.stream < plan.streams.size())
      text::append_name(out, plan.streams[each.stream]);
    else
      out += '?' + std::to_string(each.stream);
  }
  if (!each.waits.empty()) {
    out += " wait ";
    append_ids(out, 'e', each.waits);
  }
  if (each.records) {
    out += " record ";
    text::append_numbered(out, 'e', each.records.value);
  }
  if (each.directive != -1) {
    out += " by ";
    text::append_int(out, each.directive);
  }
}

Instruction read_instruction(Reader& in, const text::NameTable& streams) {
  Instruction out;
  std::string_view word = in.bare("an instruction");
  auto op = parse_opcode(word);
  if (!op)
    in.fail(fmt::format("there is no instruction \"{}\"", word));
  out.op = *op;
  if (in.accept("edge"))
    out.edge = EdgeId(in.index("an edge"));
  if (in.accept("["))
    out.chunks = text::read_chunks(in, kByNumber);
  if (in.accept("@"))
    out.microbatch = text::read_microbatch(in);
  if (in.accept("buckets"))
    out.buckets = read_ids<BucketId>(in, 'b', "a bucket");
  if (in.accept("as"))
    out.self = text::read_group(in);
  if (in.accept("to") || in.accept("from") || in.accept("over"))
    out.group = text::read_group(in);
  if (in.accept("("))
    out.inputs = read_slots_in_parentheses(in);
  if (in.accept("->")) {
    in.expect("(");
    out.outputs = read_slots_in_parentheses(in);
  }
  if (in.accept("scale"))
    out.scale = in.number("a scale");
  if (in.accept("source"))
    out.source = read_state(in);
  if (in.accept("target"))
    out.target = read_state(in);
  if (in.accept("device"))
    out.device = in.index("a device");
  if (in.accept("free"))
    out.frees = read_ids<SlotId>(in, 's', "a slot");
  if (in.accept("stream")) {
    if (in.accept("?")) {
      out.stream = in.index("a stream");
    } else {
      std::string name = in.name("a stream");
      auto found = streams.find(name);
      if (found == streams.end())
        in.fail(fmt::format("the role has no stream \"{}\"", name));
      out.stream = found->second;
    }
  }
  if (in.accept("wait"))
    out.waits = read_ids<EventId>(in, 'e', "an event");
  if (in.accept("record"))
    out.records = EventId(text::read_numbered(in, 'e', "an event"));
  if (in.accept("by"))
    out.directive = static_cast<int32_t>(in.integer("a directive"));
  in.end_line();
  return out;
}

void append_plan(std::string& out, const PlanSet& set, RoleId role, const ModelSpec* model) {
  const Plan& plan = set.plans[role.value];
  const Names names{model, &set.buckets};
  if (!plan.streams.empty()) {
    out += "  streams ";
    for (size_t i = 0; i < plan.streams.size(); ++i) {
      if (i)
        out += ", ";
      text::append_name(out, plan.streams[i]);
    }
    out += '\n';
  }
  if (plan.events) {
    out += "  events ";
    text::append_int(out, plan.events);
    out += '\n';
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    const size_t start = out.size();
    out += "  slot ";
    text::append_numbered(out, 's', static_cast<uint32_t>(i));
    out += ' ';
    text::append_ref(out, kNumbers, slot.value);
    out += " is " + slot.type.to_string();
    if (model) {
      std::string comment;
      text::append_ref(comment, names, slot.value);
      text::append_comment(out, start, comment);
    }
    out += '\n';
  }
  for (const Instruction& each : plan.instructions) {
    const size_t start = out.size();
    append_instruction(out, plan, each);
    if (model)
      text::append_comment(out, start, set.name(role, each, model));
    out += '\n';
  }
}

class PlanReader {
public:
  explicit PlanReader(Reader& in) : in_(in) {}

  PlanSet read() {
    if (!in_.next_line())
      in_.fail_expected("\"plans\"");
    header();
    bool more = in_.next_line();
    while (more)
      more = section();
    return std::move(set_);
  }

private:
  void header() {
    in_.expect("plans");
    std::string_view kind_word = in_.bare("a kind of plan");
    auto kind = parse_plan_kind(kind_word);
    if (!kind)
      in_.fail(fmt::format("there is no kind of plan \"{}\"", kind_word));
    set_.kind = *kind;
    in_.expect("epoch");
    set_.epoch = in_.index("an epoch");
    in_.expect("model");
    std::string_view hex = in_.bare("the model's fingerprint");
    auto fingerprint = Fingerprint::parse(hex);
    if (!fingerprint)
      in_.fail(fmt::format("\"{}\" is no fingerprint", hex));
    set_.model = *fingerprint;
    in_.expect("batch");
    set_.batch = in_.integer("the rows of the batch");
    in_.expect("microbatches");
    set_.microbatches = in_.integer("a number of microbatches");
    in_.expect("world");
    set_.world = text::read_group(in_);
    in_.end_line();
  }

  bool section() {
    if (in_.accept("group"))
      set_.groups.push_back(text::read_group_line(in_, set_.groups.size()));
    else if (in_.accept("bucket"))
      return bucket();
    else if (in_.accept("edge"))
      numbered(set_.edges, "an edge");
    else if (in_.accept("directive"))
      numbered(set_.directives, "a directive");
    else if (in_.accept("role"))
      return role();
    else
      in_.fail_expected("\"group\", \"bucket\", \"edge\", \"directive\" or \"role\"");
    return in_.next_line();
  }

  /// `edge 3 NAME`: the entries of a list come in order.
  void numbered(std::vector<std::string>& list, const char* what) {
    if (in_.index(what) != list.size())
      in_.fail(fmt::format("entries are numbered from 0 in order: expected {}", list.size()));
    list.push_back(in_.name("a name"));
    in_.end_line();
  }

  bool bucket() {
    Bucket bucket = text::read_bucket_line(in_);
    bool more = in_.next_line();
    for (; more && in_.accept("param"); more = in_.next_line())
      text::read_bucket_param(in_, bucket, nullptr);
    set_.buckets.push_back(std::move(bucket));
    return more;
  }

  bool role() {
    const RoleId id(set_.roles.size());
    if (RoleId(text::read_numbered(in_, 'r', "a role")) != id)
      in_.fail(fmt::format("roles are numbered from 0 in order: expected r{}", id.value));
    Role role;
    role.name = in_.name("a role's name");
    if (in_.accept("groups"))
      do {
        role.groups.push_back(text::read_group(in_));
      } while (in_.accept(","));
    if (in_.accept("devices"))
      for (DeviceIndex device : text::read_devices(in_))
        if (!set_.devices.emplace(device, id).second)
          in_.fail(fmt::format("device {} has a second role", device));
    in_.end_line();
    set_.roles.push_back(std::move(role));
    return plan(set_.plans.emplace_back());
  }

  bool plan(Plan& plan) {
    text::NameTable streams;
    bool more = in_.next_line();
    for (; more && !in_.starts_with("role"); more = in_.next_line()) {
      if (in_.accept("streams")) {
        do {
          plan.streams.push_back(in_.name("a stream"));
          if (!streams.emplace(plan.streams.back(), static_cast<uint32_t>(streams.size())).second)
            in_.fail(fmt::format("a second stream \"{}\"", plan.streams.back()));
        } while (in_.accept(","));
        in_.end_line();
      } else if (in_.accept("events")) {
        plan.events = in_.index("a number of events");
        in_.end_line();
      } else if (in_.accept("slot")) {
        if (text::read_numbered(in_, 's', "a slot") != plan.slots.size())
          in_.fail(
              fmt::format("slots are numbered from 0 in order: expected s{}", plan.slots.size()));
        Slot& slot = plan.slots.emplace_back();
        slot.value = text::read_ref(in_, kByNumber, kNoMicrobatch, {});
        in_.expect("is");
        slot.type = text::read_type(in_);
        in_.end_line();
      } else {
        plan.instructions.push_back(read_instruction(in_, streams));
      }
    }
    return more;
  }

  Reader& in_;
  PlanSet set_;
};

} // namespace

std::string PlanSet::to_text(const ModelSpec* with_names) const {
  std::string out = fmt::format("plans {} epoch {} model {} batch {} microbatches {} world ",
                                to_string(kind), epoch, model.to_string(), batch, microbatches);
  text::append_group(out, world);
  out += '\n';
  text::append_groups(out, groups);
  text::append_buckets(out, buckets, nullptr, with_names);
  for (size_t i = 0; i < edges.size(); ++i) {
    out += fmt::format("edge {} ", i);
    text::append_name(out, edges[i]);
    out += '\n';
  }
  for (size_t i = 0; i < directives.size(); ++i) {
    out += fmt::format("directive {} ", i);
    text::append_name(out, directives[i]);
    out += '\n';
  }
  std::vector<std::vector<DeviceIndex>> members(roles.size());
  for (const auto& [device, role] : devices)
    if (role.value < members.size())
      members[role.value].push_back(device);
  for (size_t r = 0; r < roles.size(); ++r) {
    out += fmt::format("role r{} ", r);
    text::append_name(out, roles[r].name);
    for (size_t i = 0; i < roles[r].groups.size(); ++i) {
      out += i ? ", " : " groups ";
      text::append_group(out, roles[r].groups[i]);
    }
    if (!members[r].empty()) {
      out += " devices ";
      text::append_devices(out, members[r]);
    }
    out += '\n';
    append_plan(out, *this, RoleId(r), with_names);
  }
  return out;
}

Result<PlanSet> PlanSet::parse(std::string_view text) {
  return text::parsing(text, [](Reader& in) { return PlanReader(in).read(); });
}

} // namespace piper::ir
