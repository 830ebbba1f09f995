// Random models, strategies, graphs and plan sets: all print and parse back, and a change of any
// of them changes its fingerprint.
#include "ir/graph.h"
#include "ir/plan.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <set>

#include <catch2/catch.hpp>

using namespace piper;
using namespace piper::ir;

namespace {

int64_t number(int64_t low, int64_t high) {
  return *rc::gen::inRange<int64_t>(low, high);
}
bool flag() {
  return number(0, 2) == 1;
}
template <class Item> const Item& one_of(const std::vector<Item>& items) {
  return items[static_cast<size_t>(number(0, static_cast<int64_t>(items.size())))];
}
template <class Make> auto list(int64_t most, Make make) {
  std::vector<decltype(make())> out(static_cast<size_t>(number(0, most + 1)));
  for (auto& each : out)
    each = make();
  return out;
}

/// Plain names, and those that the text forms must quote or might take for something else.
std::string name() {
  static const std::vector<std::string> kNames = {"a",
                                                  "attn3",
                                                  "blocks.3.ln1.weight",
                                                  "layer=3",
                                                  "d.x",
                                                  "saved.a",
                                                  "committed",
                                                  "two words",
                                                  "q\"q\\",
                                                  "#no comment",
                                                  "on",
                                                  "-",
                                                  "",
                                                  "line\nbreak",
                                                  "héé",
                                                  "->",
                                                  "x[1]",
                                                  "3",
                                                  "@2",
                                                  "tied:w",
                                                  "a,b"};
  return one_of(kNames);
}
std::vector<std::string> distinct_names(int64_t least, int64_t most) {
  std::vector<std::string> out;
  std::set<std::string> seen;
  for (int64_t i = number(least, most + 1); i > 0; --i) {
    std::string each = name();
    if (!seen.insert(each).second)
      seen.insert(each = fmt::format("{}{}", each, i));
    out.push_back(each);
  }
  return out;
}
double real() {
  return one_of<double>({0, 1, 0.1, 1.0 / 3, 1e300, -2.5, 5e-324, 123456789.125});
}

TensorType tensor_type() {
  TensorType type{static_cast<DType>(number(0, 8)), list(3, [] { return number(0, 5); }), -1};
  type.batch_dim = static_cast<int>(number(-1, static_cast<int64_t>(type.dims.size())));
  return type;
}

Tag tag() {
  return {name(), number(-3, 1000)};
}

ModelSpec model_spec() {
  ModelSpec model;
  model.name = name();
  model.batch = number(1, 100);
  for (const std::string& each : distinct_names(2, 5))
    model.values.push_back({each, tensor_type(), flag(), {}, flag()});
  for (const std::string& each : distinct_names(1, 4))
    model.params.push_back({each, tensor_type(), static_cast<int>(number(-1, 3))});
  size_t made = 1; // the first value is an input
  for (const std::string& each : distinct_names(1, 4)) {
    ModelCall call;
    call.name = each;
    call.annotations = list(2, tag);
    call.inputs = list(3, [&] { return ValueId(number(0, model.values.size())); });
    call.params = list(3, [&] { return ParamId(number(0, model.params.size())); });
    call.flops_per_row = real();
    call.cut = static_cast<Cut>(number(0, 4));
    if (call.cut != Cut::None) {
      call.pieces = number(1, 9);
      if (flag())
        call.counts = ValueId(number(0, model.values.size()));
    }
    if (made < model.values.size()) {
      model.values[made].producer = CallId(model.calls.size());
      call.outputs = {ValueId(made++)};
    }
    model.calls.push_back(std::move(call));
  }
  model.inputs = {ValueId(0)};
  model.loss = ValueId(made - 1);
  return model;
}

Filter filter() {
  Filter out;
  for (int64_t i = number(0, 4); i > 0; --i) {
    Filter::Term term(name(), number(-2, 9));
    switch (number(0, 4)) {
    case 0:
      term = {term.tag, "*"};
      break;
    case 1:
      term.match = {TagMatch::Kind::Absent, {}};
      break;
    case 2:
      term = {term.tag, std::vector<std::string>{"a", name()}};
      break;
    default:
      break;
    }
    out.add(std::move(term));
  }
  return out;
}
std::vector<DeviceIndex> devices() {
  std::vector<DeviceIndex> out = list(3, [] { return static_cast<DeviceIndex>(number(0, 9)); });
  out.push_back(9);
  return out;
}

DirectiveBody directive() {
  switch (number(0, 15)) {
  case 0:
    return Split{filter(), name(), number(1, 99)};
  case 1:
    return Place{filter(), devices(), name()};
  case 2: {
    const std::vector<double> sizes = {0, 1, 25, 0.1};
    return Replicate{.filter = filter(),
                     .devices = devices(),
                     .shard_optimizer = flag(),
                     .shard_within = number(0, 3),
                     .bucket_mb = one_of(sizes),
                     .reduce_stream = name(),
                     .gather_stream = name()};
  }
  case 3: {
    Order order{{{filter()}, {filter(), filter()}}};
    if (flag())
      order.groups.push_back({filter()});
    return order;
  }
  case 4:
    return Overlap{filter(), filter()};
  case 5:
    return Fuse{filter(), flag()};
  case 6:
    return TagCalls{filter(), name(), number(-5, 99)};
  case 7:
    return Shard{filter(), devices(), static_cast<uint32_t>(number(0, 3)), name()};
  case 8:
    return ShardTensor{filter(), devices(), static_cast<uint32_t>(number(0, 3)), flag(), name()};
  case 9:
    return SplitBackward{filter()};
  case 10:
    return Recompute{filter()};
  case 11:
    return Offload{filter(), flag(), flag(), true};
  case 12:
    return Prefetch{filter(), number(0, 5)};
  case 13:
    return Mirror{filter(), number(1, 5)};
  default:
    return Schedule{name(), number(0, 9),
                    flag() ? std::vector{name(), name()} : std::vector<std::string>{}};
  }
}

int32_t microbatch() {
  return static_cast<int32_t>(number(-1, 4));
}
GroupId group() {
  return flag() ? GroupId() : GroupId(number(0, 3));
}
template <class IdType> IdType id(int64_t count) {
  return IdType(number(0, count));
}

/// Ids within a model of two values, calls, params and buckets, and one beyond.
ValueRef value_ref() {
  ValueRef ref{.kind =
                   static_cast<ValueKind>(number(0, static_cast<int64_t>(ValueKind::Mirrored) + 1)),
               .subject = static_cast<uint32_t>(number(0, 3)),
               .microbatch = microbatch(),
               .at = group()};
  if (ref.kind == ValueKind::GradientPart)
    ref.part = static_cast<uint32_t>(number(0, 3));
  else if ((ref.kind == ValueKind::Activation || ref.kind == ValueKind::Saved) && flag())
    ref.part = static_cast<uint32_t>(number(kInPool, kFetched));
  return ref;
}
NodeId node_id() {
  NodeId out{.op = static_cast<Op>(number(0, static_cast<int64_t>(Op::UpdateMirror) + 1)),
             .subject = static_cast<uint32_t>(number(0, 3)),
             .microbatch = microbatch(),
             .at = group()};
  if (out.op == Op::Send || out.op == Op::Recv || out.op == Op::Redistribute ||
      out.op == Op::Offload || out.op == Op::Fetch) {
    const ValueRef moved = value_ref();
    out.kind = moved.kind;
    out.subject = moved.subject;
    out.part = moved.part;
    out.peer = group();
  } else if (out.op == Op::SendMirror || out.op == Op::RecvMirror) {
    out.peer = group();
  }
  return out;
}
std::vector<std::vector<CallId>> chunks() {
  auto chunk = [] {
    std::vector<CallId> out = list(2, [] { return id<CallId>(3); });
    out.push_back(CallId(0));
    return out;
  };
  return list(2, chunk);
}
Node node() {
  Node out;
  out.id = node_id();
  out.inputs = list(3, value_ref);
  out.outputs = list(2, value_ref);
  out.after = list(2, [] { return TemporalEdge{node_id(), static_cast<int32_t>(number(-1, 9))}; });
  out.chunks = chunks();
  out.scale = real();
  out.stream = name();
  out.directive = static_cast<int32_t>(number(-1, 9));
  return out;
}

std::vector<Group> groups() {
  return list(3, [] { return Group{devices(), flag()}; });
}
std::vector<Bucket> buckets() {
  std::vector<Bucket> out;
  for (const std::string& each : distinct_names(0, 2)) {
    Bucket bucket{.name = each, .group = group(), .dtype = static_cast<DType>(number(0, 8))};
    bucket.params = list(2, [] { return id<ParamId>(2); });
    for (size_t i = 0; i < bucket.params.size(); ++i)
      bucket.offsets.push_back(number(0, 1000));
    bucket.numel = number(0, 5000);
    bucket.shards = static_cast<uint32_t>(number(1, 4));
    bucket.shard_optimizer = flag();
    bucket.fused_update = flag();
    bucket.mirrors = list(2, group);
    out.push_back(std::move(bucket));
  }
  return out;
}

Graph graph() {
  static const auto kModel = [] {
    ModelSpec model;
    model.name = "two calls";
    model.batch = 8;
    model.values = {{"d.x", {}, false, {}}, {"y z", {}, true, CallId(0)}};
    model.params = {{"w", {}}, {"\"", {}}};
    model.calls = {{.name = "a", .annotations = {{"layer", 1}}, .outputs = {ValueId(1)}},
                   {.name = "b c"}};
    return std::make_shared<const ModelSpec>(std::move(model));
  }();
  static const auto kStrategy = std::make_shared<const Strategy>();
  Graph out;
  out.model = kModel;
  out.strategy = kStrategy;
  out.microbatches = number(1, 9);
  out.microbatch_tag = name();
  for (const ModelCall& call : out.model->calls) {
    out.tags.push_back(call.annotations);
    for (Tag& each : list(2, tag))
      out.tags.back().push_back(std::move(each));
  }
  out.groups = groups();
  out.buckets = buckets();
  for (const std::string& each : distinct_names(0, 3))
    out.regions.push_back(std::make_shared<Region>(each, list(3, node)));
  return out;
}

StateRange state_range() {
  return {static_cast<Epoch>(number(0, 9)),
          id<BucketId>(3),
          static_cast<StateKind>(number(0, 5)),
          number(0, 99),
          number(0, 99),
          static_cast<uint32_t>(number(0, 3))};
}
std::vector<SlotId> slots() {
  return list(3, [] { return id<SlotId>(9); });
}
Instruction instruction(size_t streams) {
  Instruction out;
  out.op = static_cast<Opcode>(number(0, static_cast<int64_t>(Opcode::RecvState)));
  out.stream = static_cast<uint32_t>(number(0, static_cast<int64_t>(streams) + 1));
  out.microbatch = microbatch();
  out.chunks = chunks();
  out.inputs = slots();
  out.outputs = slots();
  out.outputs.push_back({});
  out.frees = slots();
  out.buckets = list(2, [] { return id<BucketId>(3); });
  out.group = group();
  out.self = group();
  out.edge = flag() ? EdgeId() : id<EdgeId>(9);
  out.scale = real();
  if (flag())
    out.source = state_range();
  if (flag())
    out.target = state_range();
  out.device = static_cast<DeviceIndex>(number(0, 3));
  out.waits = list(2, [] { return id<EventId>(9); });
  out.records = flag() ? EventId() : id<EventId>(9);
  out.directive = static_cast<int32_t>(number(-1, 9));
  return out;
}
PlanSet plan_set() {
  PlanSet out;
  out.kind = static_cast<PlanKind>(number(0, 3));
  out.epoch = static_cast<Epoch>(number(0, 99));
  out.model = fingerprint(name());
  out.batch = number(1, 99);
  out.microbatches = number(1, 9);
  out.groups = groups();
  out.world = group();
  out.buckets = buckets();
  out.edges = list(3, name);
  out.directives = list(3, name);
  out.roles = list(2, [] { return Role{name(), list(2, group)}; });
  for (size_t r = 0; r < out.roles.size(); ++r) {
    Plan plan;
    plan.streams = distinct_names(0, 3);
    plan.events = static_cast<uint32_t>(number(0, 9));
    plan.slots = list(3, [] { return Slot{value_ref(), tensor_type()}; });
    plan.instructions = list(4, [&] { return instruction(plan.streams.size()); });
    out.plans.push_back(std::move(plan));
    if (flag())
      out.devices[static_cast<DeviceIndex>(r)] = RoleId(r);
  }
  return out;
}

} // namespace

TEST_CASE("random models print and parse back") {
  CHECK(rc::check([] {
    const ModelSpec model = model_spec();
    const auto parsed = ModelSpec::parse(model.to_text());
    if (!parsed.ok())
      RC_FAIL(parsed.error().to_string() + "\n" + model.to_text());
    RC_ASSERT(*parsed == model);
    RC_ASSERT(parsed->fingerprint() == model.fingerprint());
  }));
}

TEST_CASE("models have one fingerprint exactly if they are equal") {
  CHECK(rc::check([] {
    const ModelSpec a = model_spec(), b = model_spec();
    RC_ASSERT((a == b) == (a.fingerprint() == b.fingerprint()));
    ModelSpec c = a;
    switch (number(0, 8)) {
    case 0:
      c.name += "x";
      break;
    case 1:
      ++c.batch;
      break;
    case 2:
      c.values[0].differentiable = !c.values[0].differentiable;
      break;
    case 3:
      c.values[0].type.dims.push_back(7);
      break;
    case 4:
      c.params[0].name += "x";
      break;
    case 5:
      c.calls[0].annotations.push_back({"new", 1});
      break;
    case 6:
      c.calls[0].flops_per_row += 1e301;
      break;
    default:
      c.calls[0].inputs.push_back(ValueId(0));
      break;
    }
    RC_ASSERT(c.fingerprint() != a.fingerprint());
  }));
}

TEST_CASE("random strategies print as JSON and parse back") {
  CHECK(rc::check([] {
    Strategy strategy;
    for (DirectiveBody& body : list(4, directive))
      strategy.add(std::move(body));
    const auto parsed = Strategy::parse(strategy.to_json());
    if (!parsed.ok())
      RC_FAIL(parsed.error().to_string() + "\n" + strategy.to_json());
    RC_ASSERT(*parsed == strategy);
    RC_ASSERT(parsed->to_json() == strategy.to_json());
  }));
}

TEST_CASE("random graphs print and parse back") {
  CHECK(rc::check([] {
    const Graph g = graph();
    const auto parsed = Graph::parse(g.to_text(), g.model, g.strategy);
    if (!parsed.ok())
      RC_FAIL(parsed.error().to_string() + "\n" + g.to_text());
    RC_ASSERT(parsed->to_text() == g.to_text());
    RC_ASSERT(parsed->fingerprint() == g.fingerprint());
    RC_ASSERT(parsed->tags == g.tags);
    RC_ASSERT(parsed->groups == g.groups);
    RC_ASSERT(parsed->buckets == g.buckets);
    for (size_t r = 0; r < g.regions.size(); ++r)
      RC_ASSERT(parsed->regions[r]->nodes() == g.regions[r]->nodes());
  }));
}

TEST_CASE("graphs have one fingerprint exactly if they have one text") {
  CHECK(rc::check([] {
    const Graph a = graph(), b = graph();
    RC_ASSERT((a.to_text() == b.to_text()) == (a.fingerprint() == b.fingerprint()));
  }));
}

TEST_CASE("random plan sets print and parse back") {
  CHECK(rc::check([] {
    const PlanSet set = plan_set();
    const auto parsed = PlanSet::parse(set.to_text());
    if (!parsed.ok())
      RC_FAIL(parsed.error().to_string() + "\n" + set.to_text());
    RC_ASSERT(parsed->to_text() == set.to_text());
    RC_ASSERT(*parsed == set);
  }));
}
