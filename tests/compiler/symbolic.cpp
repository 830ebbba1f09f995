#include "tests/compiler/symbolic.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>

namespace piper::test {

using namespace ir;

namespace {

enum Kind : int64_t {
  kInput,
  kParam,
  kContext,
  kOutput,
  kSeed,
  kInputGrad,
  kParamGrad,
  kNorm,
  kUpdate,
  kAbsent ///< memory that nothing has been written to
};

/// How a device runs calls: as the rank of a block, with what it has of the block's values. What
/// comes of it is told as its share of what one device would make of the whole; of experts, for
/// the rows of each source that they come from.
struct Place {
  Layout layout = Layout::Whole;
  int64_t rank = 0, ways = 1, outside = 1;
  int64_t sources() const { return layout == Layout::Experts ? ways / outside : 1; }
};

/// A call on the whole of its inputs.
struct CallRun {
  uint32_t context = 0; ///< what it was run on, as one term
  std::vector<uint32_t> inputs;
  int64_t counts = -1; ///< of the rows of experts, as a term
};

/// What the forward of a chunk keeps.
struct Context {
  Place place;
  std::vector<CallId> calls;
  std::vector<std::vector<CallRun>> runs; ///< of each call, of each source
};

/// What a slot holds.
struct Value {
  enum class Type { Tensor, Gradient, Saved, Deferred } type = Type::Tensor;
  Form form; ///< of a tensor mostly one term
  std::shared_ptr<const Context> context;
  std::map<uint32_t, Form> weights; ///< of Deferred: by parameter, what is still to be added
  bool away = false;                ///< in another memory
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A parameter's array on one device: the whole, or one of `pieces`. It is in as many parts as its
/// bucket's group has copies; a shard is some of them in a row. Of a sharded array only those of
/// the own shard are kept; the others are absent, but for windows.
struct ParamState {
  BucketId bucket;
  int64_t piece = 0, pieces = 1;
  size_t copy = 0, shards = 1;
  bool counts = true; ///< in the norm
  std::vector<uint32_t> param;
  std::vector<Form> grad;
  bool shard_params = false, shard_grads = false;
  std::optional<std::vector<Form>> window; ///< whole gradients of sharded ones
  bool gathered = false;                   ///< memory for the whole of a sharded parameter
  size_t parts_of_shard() const { return param.size() / shards; }
  bool owns(size_t part) const { return part / parts_of_shard() == copy % shards; }
  /// The one of its shard's parts that it counts, and none other of those who own that shard.
  size_t counted() const { return copy % shards * parts_of_shard() + copy / shards; }
};

/// A mirror on one device: of each parameter the parts that are mirrored, in the parts of a
/// ParamState.
struct MirrorState {
  int rank = 0; ///< in the bucket's group, of what is mirrored
  int64_t piece = 0, pieces = 1;
  std::map<std::pair<uint32_t, size_t>, uint32_t> param;
  std::map<std::pair<uint32_t, size_t>, Form> grad;
};
using MirrorId = std::pair<BucketId, GroupId>;

/// What an instruction has read, and what it will write when it ends.
struct Running {
  bool complete = true; ///< needs nobody else any more
  std::map<uint32_t, Value> slots;
  std::map<std::pair<uint32_t, size_t>, Form> grads;  ///< by parameter and part
  std::map<std::pair<uint32_t, size_t>, Form> window; ///< likewise, of sharded gradients
  std::map<std::pair<uint32_t, size_t>, uint32_t> params;
  std::map<uint32_t, std::vector<uint32_t>> used; ///< parameters that have to stay as they are
  std::map<std::pair<uint32_t, size_t>, uint32_t> applied; ///< gradients, by an update
  std::optional<uint32_t> norm, loss;
  Value moved; ///< what a redistribute brings, and the counts at both its ends
  std::optional<Counts> counts;
  std::optional<size_t> owner;                              ///< device whose gradients it takes
  std::map<std::pair<uint32_t, size_t>, uint32_t> mirrored; ///< parameters of a mirror
};

struct Stream {
  size_t device = 0;
  std::vector<uint32_t> list; ///< of instructions
  size_t next = 0;
  std::optional<Running> running;
  bool done() const { return next == list.size(); }
};

struct DeviceState {
  DeviceIndex index = 0;
  RoleId role;
  const Plan* plan = nullptr;
  std::vector<std::optional<Value>> slots;
  std::vector<bool> events;
  std::map<uint32_t, ParamState> params;
  std::map<MirrorId, MirrorState> mirrors;
  std::map<std::pair<uint32_t, size_t>, uint32_t> applied;
  uint32_t norm = 0;
  int64_t peak = 0;
  std::map<int32_t, uint32_t> losses;
};

class Machine {
public:
  Machine(const PlanSet& set, const ModelSpec& model, Terms& terms, uint64_t seed,
          const SlotMemories& memories)
      : set_(set), model_(model), terms_(terms), memories_(memories), random_(seed),
        blocking_(random_() % 2 == 0), hurry_(random_() % 3 != 0) {}

  SymbolicRun run() {
    SymbolicRun outcome;
    try {
      start();
      interleave();
      outcome.result = collect();
      for (const DeviceState& device : devices_)
        outcome.peak[device.index] = device.peak;
    } catch (const Failure& failure) {
      outcome.failure = failure.what();
    }
    return outcome;
  }

private:
  void start() {
    for (const Bucket& bucket : set_.buckets)
      if (set_.groups[bucket.group.value].copies() < bucket.shards)
        throw Failure("a bucket has more shards than its group has copies");
    for (const auto& [index, role] : set_.devices) {
      DeviceState device;
      device.index = index;
      device.role = role;
      device.plan = &set_.plans[role.value];
      device.slots.resize(device.plan->slots.size());
      device.events.resize(device.plan->events);
      for (uint32_t b = 0; b < set_.buckets.size(); ++b) {
        const int rank = set_.rank_in(set_.buckets[b].group, index);
        if (rank < 0)
          continue;
        const Group& group = set_.groups[set_.buckets[b].group.value];
        const auto copies = static_cast<size_t>(group.copies());
        for (ParamId param : set_.buckets[b].params) {
          ParamState& held = device.params[param.value];
          held = {.bucket = BucketId(b),
                  .piece = group.part(rank),
                  .pieces = group.parts(),
                  .copy = group.copy(rank),
                  .shards = set_.buckets[b].shards,
                  .counts = group.counts(rank),
                  .param = std::vector<uint32_t>(copies, initial(param, group, rank)),
                  .grad = std::vector<Form>(copies),
                  .shard_params = set_.buckets[b].shard_params,
                  .shard_grads = set_.buckets[b].shard_grads};
          if (held.shard_params)
            leave_own_parts(held);
        }
      }
      start_mirrors(device);
      for (size_t s = 0; s < device.plan->streams.size(); ++s)
        streams_.push_back({devices_.size(), {}, 0, {}});
      const size_t first = streams_.size() - device.plan->streams.size();
      for (uint32_t i = 0; i < device.plan->instructions.size(); ++i)
        streams_[first + device.plan->instructions[i].stream].list.push_back(i);
      devices_.push_back(std::move(device));
    }
  }

  uint32_t initial(ParamId param, const Group& group, int rank) {
    const uint32_t whole = terms_.of({kParam, int64_t{param.value}});
    return group.parts() > 1
               ? terms_.of(Share{Layout::Weights, group.part(rank), group.parts(), whole})
               : whole;
  }

  void start_mirrors(DeviceState& device) {
    for (uint32_t b = 0; b < set_.buckets.size(); ++b)
      for (GroupId group : set_.buckets[b].mirrors) {
        const Bucket& bucket = set_.buckets[b];
        const int rank = set_.rank_in(group, device.index);
        if (rank < 0)
          continue;
        MirrorState& mirror = device.mirrors[{BucketId(b), group}];
        const Group& home = set_.groups[bucket.group.value];
        mirror.rank = rank;
        mirror.piece = home.part(rank);
        mirror.pieces = home.parts();
        for (ParamId param : bucket.params)
          for (size_t part = 0; part < home.copies(); ++part)
            if (part / (home.copies() / bucket.shards) == home.copy(rank) % bucket.shards)
              mirror.param[{param.value, part}] = initial(param, home, rank);
      }
  }

  /// Some streams run ahead as far as they can, others are held back; who does changes. Or all take
  /// turns at random.
  void interleave() {
    std::vector<size_t> order(streams_.size());
    for (size_t s = 0; s < order.size(); ++s)
      order[s] = s;
    while (true) {
      if (!hurry_ || random_() % 32 == 0)
        std::shuffle(order.begin(), order.end(), random_);
      if (std::any_of(order.begin(), order.end(), [&](size_t s) { return step(streams_[s]); }))
        continue;
      for (const Stream& stream : streams_)
        if (!stream.done())
          fail(stream, "never ends");
      if (!messages_.empty() || !offers_.empty())
        throw Failure("a message is never received");
      return;
    }
  }

  [[noreturn]] void fail(const Stream& stream, const std::string& what) const {
    const DeviceState& device = devices_[stream.device];
    throw Failure(fmt::format("device {}: {} {}", device.index,
                              set_.name(device.role, instruction(stream), &model_), what));
  }
  const Instruction& instruction(const Stream& stream) const {
    return devices_[stream.device].plan->instructions[stream.list[stream.next]];
  }

  /// Begins or ends the stream's next instruction, if it can.
  bool step(Stream& stream) {
    if (stream.done())
      return false;
    DeviceState& device = devices_[stream.device];
    const Instruction& each = instruction(stream);
    if (!stream.running) {
      if (!std::all_of(each.waits.begin(), each.waits.end(),
                       [&](EventId event) { return device.events[event.value]; }))
        return false;
      stream.running.emplace();
      begin(stream, device, each, *stream.running);
      measure(device);
      return true;
    }
    if (!stream.running->complete)
      return false;
    end(stream, device, each, *stream.running);
    stream.running.reset();
    ++stream.next;
    return true;
  }

  void end(const Stream& stream, DeviceState& device, const Instruction& each, Running& running) {
    for (const auto& [param, parts] : running.used)
      if (device.params.at(param).param != parts)
        fail(stream, "uses a parameter that changes meanwhile");
    for (auto& [slot, value] : running.slots)
      device.slots[slot] = std::move(value);
    for (auto& [at, form] : running.window) {
      auto& window = device.params.at(at.first).window;
      if (!window)
        fail(stream, "adds to gradients that are let go meanwhile");
      (*window)[at.second] = std::move(form);
    }
    for (auto& [at, form] : running.grads)
      device.params.at(at.first).grad[at.second] = std::move(form);
    for (auto& [at, term] : running.params)
      device.params.at(at.first).param[at.second] = term;
    for (auto& [at, term] : running.applied)
      device.applied[at] = term;
    if (running.owner)
      take_gradients(mirror(stream, each), each, devices_[*running.owner]);
    for (auto& [at, term] : running.mirrored)
      mirror(stream, each).param[at] = term;
    if (running.norm)
      device.norm = *running.norm;
    if (running.loss)
      device.losses[each.microbatch] = *running.loss;
    for (SlotId slot : each.frees)
      device.slots[slot.value].reset();
    if (each.records)
      device.events[each.records.value] = true;
  }

  /// What is there, what running instructions but backwards are making, messages whose slot is
  /// gone, and open windows.
  void measure(DeviceState& device) {
    if (memories_.empty())
      return;
    const SlotMemory& memory = memories_[device.role.value];
    std::vector<bool> taken(device.slots.size());
    for (size_t s = 0; s < taken.size(); ++s)
      taken[s] = device.slots[s].has_value();
    for (const Stream& stream : streams_) {
      if (&devices_[stream.device] != &device || !stream.running)
        continue;
      const Instruction& each = instruction(stream);
      if (!adds_to_gradients(each.op)) // that lets go as it goes
        for (SlotId slot : each.outputs)
          if (slot)
            taken[slot.value] = true;
      if (each.op == Opcode::Send) // its slot is the message's
        for (SlotId slot : each.frees)
          taken[slot.value] = false;
    }
    for (const auto& [key, posted] : messages_)
      if (key.from == device.index && !posted.sent.empty())
        taken[posted.source.value] = true;
    std::set<uint32_t> live;
    for (size_t s = 0; s < taken.size(); ++s)
      if (taken[s])
        live.insert(memory.kept_by[s].begin(), memory.kept_by[s].end());
    int64_t sum = 0;
    for (uint32_t piece : live)
      sum += memory.bytes[piece];
    for (const auto& [param, held] : device.params)
      sum += (int{held.gathered} + int{held.window.has_value()}) *
             (model_.params[param].type.bytes(1) / held.pieces);
    device.peak = std::max(device.peak, sum);
  }

  const Value& read(const Stream& stream, SlotId slot, Value::Type type) const {
    const DeviceState& device = devices_[stream.device];
    if (!slot || slot.value >= device.slots.size() || !device.slots[slot.value])
      fail(stream, fmt::format("reads s{}, which is empty", slot.value));
    const Value& value = *device.slots[slot.value];
    if (value.type != type || value.away)
      fail(stream, fmt::format("reads s{}, which holds something else", slot.value));
    return value;
  }
  uint32_t subject(const Stream& stream, SlotId slot) const {
    if (!slot)
      fail(stream, "lacks a slot");
    return devices_[stream.device].plan->slots[slot.value].value.subject;
  }
  const ModelCall& call_of(const Stream& stream, CallId id) const {
    if (id.value >= model_.calls.size())
      fail(stream, "has a call that the model has not");
    return model_.call(id);
  }
  SlotId only(const Stream& stream, const std::vector<SlotId>& slots) const {
    if (slots.empty() || !slots[0])
      fail(stream, "lacks a slot");
    return slots[0];
  }
  ParamState& state(Stream& stream, ParamId param) {
    auto found = devices_[stream.device].params.find(param.value);
    if (found == devices_[stream.device].params.end())
      fail(stream, "needs a parameter that the device does not hold");
    return found->second;
  }

  void begin(Stream& stream, DeviceState& device, const Instruction& each, Running& running) {
    switch (each.op) {
    case Opcode::Input: {
      if (!each.self)
        fail(stream, "runs nowhere");
      const SlotId slot = only(stream, each.outputs);
      const int rank = set_.rank_in(each.self, device.index);
      if (rank < 0 || set_.rows(each.self) == 0)
        fail(stream, "has no rows to read");
      const uint32_t rows =
          terms_.of({kInput, int64_t{subject(stream, slot)},
                     set_.first_row(each.self, rank, each.microbatch), set_.rows(each.self)});
      running.slots[slot.value].form[rows] = 1;
      return;
    }
    case Opcode::Forward:
    case Opcode::Recompute:
      return forward(stream, each, running);
    case Opcode::Seed: {
      Value& value = running.slots[only(stream, each.outputs).value];
      value.type = Value::Type::Gradient;
      value.form[terms_.of({kSeed})] = each.scale;
      return;
    }
    case Opcode::Backward:
    case Opcode::BackwardInput:
      return backward(stream, each, running);
    case Opcode::BackwardWeight: {
      std::map<uint32_t, Form> weights;
      for (size_t c = 0; c < each.chunks.size(); ++c) {
        if (c >= each.inputs.size())
          fail(stream, "lacks what was deferred");
        for (const auto& [param, form] :
             read(stream, each.inputs[c], Value::Type::Deferred).weights)
          add(weights[param], form);
      }
      return accumulate(stream, weights, running);
    }
    case Opcode::Add: {
      Value sum{.type = Value::Type::Gradient};
      for (SlotId slot : each.inputs)
        add(sum.form, read(stream, slot, Value::Type::Gradient).form);
      running.slots[only(stream, each.outputs).value] = std::move(sum);
      return;
    }
    case Opcode::Loss:
      running.loss = terms_.of(read(stream, only(stream, each.inputs), Value::Type::Tensor).form);
      return;
    case Opcode::Offload:
    case Opcode::Fetch:
      for (size_t i = 0; i < std::max(each.inputs.size(), each.outputs.size()); ++i) {
        if (i >= each.inputs.size() || i >= each.outputs.size())
          fail(stream, "does not give what it takes");
        const auto& source = device.slots[each.inputs[i].value];
        if (!source || source->away != (each.op == Opcode::Fetch))
          fail(stream, "moves what is not there");
        Value& moved = running.slots[each.outputs[i].value] = *source;
        moved.away = each.op == Opcode::Offload;
      }
      return;
    case Opcode::Send:
    case Opcode::Recv:
      return transfer(stream, device, each, running);
    case Opcode::AllReduce:
    case Opcode::ReduceScatter:
    case Opcode::AllGather:
    case Opcode::Commit:
      return collective(stream, each);
    case Opcode::Gather:
      for_bucket(stream, [&](ParamState& held) {
        leave_own_parts(held);
        held.gathered = true;
      });
      return collective(stream, each);
    case Opcode::Release:
      return for_bucket(stream, [&](ParamState& held) {
        leave_own_parts(held);
        held.gathered = false;
      });
    case Opcode::ZeroGrads:
      return for_bucket(stream, [&](ParamState& held) { held.window.emplace(held.grad.size()); });
    case Opcode::Update:
      return update(stream, device, each, running);
    case Opcode::Redistribute:
      return redistribute(stream, device, each, running);
    case Opcode::SendMirror:
    case Opcode::RecvMirror:
      return offer(stream, device, each, running);
    case Opcode::UpdateMirror: {
      MirrorState& its = mirror(stream, each);
      for (const auto& [at, term] : its.param) {
        const uint32_t gradient = terms_.of(of_piece(its.piece, its.pieces, its.grad[at]));
        running.mirrored[at] =
            terms_.of({kUpdate, int64_t{term}, int64_t{gradient}, int64_t{device.norm}});
      }
      return;
    }
    default:
      fail(stream, "is not of an iteration");
    }
  }

  /// On the state of each parameter of the instruction's bucket.
  template <class F> void for_bucket(Stream& stream, F&& work) {
    if (instruction(stream).buckets.empty())
      fail(stream, "has no bucket");
    for (ParamId param : set_.buckets[instruction(stream).buckets[0].value].params)
      work(state(stream, param));
  }
  void leave_own_parts(ParamState& held) {
    for (size_t part = 0; part < held.param.size(); ++part)
      if (!held.owns(part))
        held.param[part] = terms_.of({kAbsent});
  }

  Place place_of(const Stream& stream, const Instruction& each) const {
    const int rank = each.self ? set_.rank_in(each.self, devices_[stream.device].index) : -1;
    if (rank < 0)
      fail(stream, "runs nowhere");
    const Group& group = set_.groups[each.self.value];
    return {group.layout, rank % static_cast<int64_t>(group.ways), group.ways, group.outside};
  }

  /// The whole of what a call reads, where the device has the share that its layout says; what is
  /// something else stays as it is. Of experts, what comes from one source.
  Form whole_of(const Form& form, const Place& at, int64_t source, int64_t counts) const {
    if (reads(at.layout) == Layout::Whole)
      return form;
    Form whole;
    for (const auto& [term, coefficient] : form) {
      const auto share = terms_.share_of(term);
      const bool ours =
          share && share->layout == at.layout && share->rank == at.rank && share->ways == at.ways;
      if (ours && at.layout == Layout::Experts && share->source != source)
        continue;
      const bool right = ours && (at.layout != Layout::Experts || share->counts == counts);
      whole[right ? share->whole : term] += coefficient;
    }
    return whole;
  }
  /// The share that the device has of what a call makes.
  Form share_of(const Form& whole, const Place& at, int64_t source, int64_t counts) {
    if (makes(at.layout) == Layout::Whole)
      return whole;
    if (at.layout != Layout::Experts)
      source = counts = -1;
    return shared(terms_, whole, {makes(at.layout), at.rank, at.ways, 0, source, counts});
  }

  /// A parameter as a call uses it: of cut ones the piece that its place asks for.
  uint32_t used(Stream& stream, ParamId param, const Place& at, Running& running) {
    const ParamState& held = state(stream, param);
    if (std::count(held.param.begin(), held.param.end(), terms_.of({kAbsent})) > 0)
      fail(stream, "needs a parameter that is not whole");
    const bool cut = is_cut(param, at);
    if (held.pieces != (cut ? at.ways : 1) || (cut && held.piece != at.rank))
      fail(stream, "needs another piece of a parameter");
    running.used[param.value] = held.param;
    std::vector<int64_t> parts;
    for (uint32_t part : held.param) {
      const auto share = terms_.share_of(part);
      parts.push_back(share ? share->whole : part);
    }
    const bool equal =
        std::count(parts.begin(), parts.end(), parts[0]) == static_cast<ptrdiff_t>(parts.size());
    return equal ? static_cast<uint32_t>(parts[0]) : terms_.garbage(parts);
  }
  bool is_cut(ParamId param, const Place& at) const {
    return (at.layout == Layout::Weights && model_.param(param).cut >= 0) ||
           at.layout == Layout::Experts;
  }

  /// What a call is run on: its inputs, and its parameters as they are now.
  uint32_t context_of(Stream& stream, CallId id, const std::vector<uint32_t>& inputs,
                      const Place& at, Running& running) {
    std::vector<int64_t> key = {kContext, int64_t{id.value}};
    key.insert(key.end(), inputs.begin(), inputs.end());
    for (ParamId param : call_of(stream, id).params)
      key.push_back(used(stream, param, at, running));
    return terms_.of(std::move(key));
  }

  CallRun run_of(Stream& stream, CallId id, const std::map<uint32_t, Form>& values, const Place& at,
                 int64_t source, Running& running) {
    const ModelCall& call = call_of(stream, id);
    for (ValueId v : call.inputs)
      if (!values.contains(v.value))
        fail(stream, "needs a value that it does not read");
    CallRun run;
    const bool with_experts = at.layout == Layout::Experts;
    if (with_experts && !call.counts)
      fail(stream, "has no experts");
    if (with_experts) {
      const uint32_t columns = terms_.of(values.at(call.counts.value));
      run.counts = terms_.line_of(columns, at.rank, at.sources(), source).value_or(columns);
    }
    for (ValueId v : call.inputs)
      run.inputs.push_back(with_experts && v == call.counts
                               ? static_cast<uint32_t>(run.counts)
                               : terms_.of(whole_of(values.at(v.value), at, source, run.counts)));
    run.context = context_of(stream, id, run.inputs, at, running);
    return run;
  }

  void forward(Stream& stream, const Instruction& each, Running& running) {
    const Place place = place_of(stream, each);
    std::map<uint32_t, Form> values;
    for (SlotId slot : each.inputs)
      values[subject(stream, slot)] = read(stream, slot, Value::Type::Tensor).form;
    std::set<uint32_t> made;
    const size_t saved = set_.kind == PlanKind::Train ? each.chunks.size() : 0;
    for (size_t c = 0; c < each.chunks.size(); ++c) {
      Context context{place, each.chunks[c], {}};
      for (CallId id : each.chunks[c]) {
        const ModelCall& call = call_of(stream, id);
        std::vector<CallRun>& runs = context.runs.emplace_back();
        for (int64_t source = 0; source < place.sources(); ++source)
          runs.push_back(run_of(stream, id, values, place, source, running));
        for (size_t o = 0; o < call.outputs.size(); ++o) {
          Form& value = values[call.outputs[o].value];
          value.clear();
          for (size_t r = 0; r < runs.size(); ++r) {
            const uint32_t whole =
                terms_.of({kOutput, int64_t{runs[r].context}, static_cast<int64_t>(o)});
            add(value, share_of({{whole, 1}}, place, static_cast<int64_t>(r), runs[r].counts));
          }
          made.insert(call.outputs[o].value);
        }
      }
      if (saved && c >= each.outputs.size())
        fail(stream, "lacks a slot for what it saves");
      if (saved && each.outputs[c])
        running.slots[each.outputs[c].value] = {
            .type = Value::Type::Saved,
            .context = std::make_shared<const Context>(std::move(context))};
    }
    for (size_t i = saved; i < each.outputs.size(); ++i) {
      const uint32_t v = subject(stream, each.outputs[i]);
      if (!made.contains(v))
        fail(stream, "does not make one of its outputs");
      running.slots[each.outputs[i].value].form = values[v];
    }
  }

  /// In the layout of the forward, whatever its own group says.
  void backward(Stream& stream, const Instruction& each, Running& running) {
    if (each.inputs.size() < each.chunks.size())
      fail(stream, "lacks what was saved");
    std::map<uint32_t, Form> gradients; // of values, as far as they have come
    for (size_t i = each.chunks.size(); i < each.inputs.size(); ++i)
      add(gradients[subject(stream, each.inputs[i])],
          read(stream, each.inputs[i], Value::Type::Gradient).form);
    std::set<uint32_t> made, reads;
    std::map<uint32_t, Form> now;
    const bool defers = each.op == Opcode::BackwardInput;
    for (size_t c = each.chunks.size(); c-- > 0;) {
      std::map<uint32_t, Form> later;
      const Value& saved = read(stream, each.inputs[c], Value::Type::Saved);
      const Place& place = saved.context->place;
      if (saved.context->calls != each.chunks[c])
        fail(stream, "goes back through other calls than went forward");
      for (size_t k = each.chunks[c].size(); k-- > 0;) {
        const ModelCall& call = call_of(stream, each.chunks[c][k]);
        const std::vector<CallRun>& runs = saved.context->runs[k];
        for (const CallRun& run : runs)
          if (context_of(stream, each.chunks[c][k], run.inputs, place, running) != run.context)
            fail(stream, "goes back through other parameters than went forward");
        for (size_t o = 0; o < call.outputs.size(); ++o) {
          made.insert(call.outputs[o].value);
          for (size_t r = 0; r < runs.size(); ++r) {
            const auto source = static_cast<int64_t>(r);
            const Form given =
                whole_of(gradients[call.outputs[o].value], place, source, runs[r].counts);
            auto flow = [&](Kind kind, size_t into) {
              Form whole;
              for (const auto& [term, coefficient] : given)
                whole[terms_.of({kind, int64_t{runs[r].context}, static_cast<int64_t>(o),
                                 static_cast<int64_t>(into), int64_t{term}})] += coefficient;
              return whole;
            };
            for (size_t p = 0; p < call.params.size(); ++p) {
              const bool waits = defers && model_.param(call.params[p]).type.dims.size() > 1;
              add((waits ? later : now)[call.params[p].value],
                  param_share(flow(kParamGrad, p), call.params[p], place));
            }
            for (size_t i = 0; i < call.inputs.size(); ++i)
              if (model_.value(call.inputs[i]).differentiable) {
                reads.insert(call.inputs[i].value);
                add(gradients[call.inputs[i].value],
                    share_of(flow(kInputGrad, i), place, source, runs[r].counts));
              }
          }
        }
      }
      if (!defers)
        continue;
      if (c >= each.outputs.size())
        fail(stream, "lacks a slot for what it defers");
      if (each.outputs[c])
        running.slots[each.outputs[c].value] = {.type = Value::Type::Deferred,
                                                .weights = std::move(later)};
    }
    std::set<uint32_t> written;
    for (size_t i = defers ? each.chunks.size() : 0; i < each.outputs.size(); ++i) {
      const SlotId slot = each.outputs[i];
      const uint32_t v = subject(stream, slot);
      if (!reads.contains(v) || made.contains(v) || !written.insert(v).second)
        fail(stream, "does not make one of its outputs");
      running.slots[slot.value] = {.type = Value::Type::Gradient, .form = gradients[v]};
    }
    accumulate(stream, now, running);
  }

  /// What a rank adds to the gradient of a parameter: of cut ones its piece; of others a summand,
  /// where it works on a piece of the values or of other parameters.
  Form param_share(const Form& whole, ParamId param, const Place& at) {
    if (at.layout == Layout::Whole)
      return whole;
    const Layout layout = is_cut(param, at) ? Layout::Weights : Layout::Partial;
    return shared(terms_, whole, {layout, at.rank, at.ways});
  }

  void accumulate(Stream& stream, const std::map<uint32_t, Form>& weights, Running& running) {
    for (const auto& [param, form] : weights) {
      ParamState& held = state(stream, ParamId(param));
      if (held.shard_grads && !held.window)
        fail(stream, "adds to gradients that are not whole");
      for (size_t part = 0; part < held.grad.size(); ++part) {
        Form sum = held.shard_grads ? (*held.window)[part] : held.grad[part];
        add(sum, form);
        (held.shard_grads ? running.window : running.grads)[{param, part}] = std::move(sum);
      }
    }
  }

  void update(Stream& stream, DeviceState& device, const Instruction& each, Running& running) {
    if (each.buckets.empty())
      fail(stream, "has no bucket");
    const Bucket& bucket = set_.buckets[each.buckets[0].value];
    for (ParamId param : bucket.params) {
      ParamState& held = state(stream, param);
      for (size_t part = 0; part < held.param.size(); ++part) {
        running.grads[{param.value, part}] = {};
        if (!held.owns(part))
          continue;
        const uint32_t gradient = terms_.of(of_piece(held.piece, held.pieces, held.grad[part]));
        running.applied[{param.value, part}] = gradient;
        const uint32_t norm = bucket.fused_update ? 0 : device.norm; // no clipping: see the binder
        running.params[{param.value, part}] =
            terms_.of({kUpdate, int64_t{held.param[part]}, int64_t{gradient}, int64_t{norm}});
      }
    }
  }
  /// What the gradient of the whole parameter must be for its piece to have this one.
  Form of_piece(int64_t piece, int64_t pieces, const Form& gradient) const {
    if (pieces == 1)
      return gradient;
    Form whole;
    for (const auto& [term, coefficient] : gradient) {
      const auto share = terms_.share_of(term);
      const bool right = share && share->layout == Layout::Weights && share->rank == piece &&
                         share->ways == pieces;
      whole[right ? share->whole : term] += coefficient;
    }
    return whole;
  }

  // ---- What goes between devices.

  struct MessageKey {
    DeviceIndex from, to;
    uint32_t edge;
    int32_t microbatch;
    auto operator<=>(const MessageKey&) const = default;
  };
  struct Posted {
    std::deque<Value> sent;
    SlotId source;                          ///< of what was sent
    std::deque<Stream*> senders, receivers; ///< that wait
  };

  MessageKey key_of(const Stream& stream, const Instruction& each, bool sends) const {
    const DeviceIndex self = devices_[stream.device].index;
    const int rank = set_.rank_in(each.self, self);
    if (!each.self || !each.group || rank < 0 ||
        static_cast<size_t>(rank) >= set_.groups[each.group.value].devices.size())
      fail(stream, "has no peer");
    const DeviceIndex peer = set_.groups[each.group.value].devices[static_cast<size_t>(rank)];
    return {sends ? self : peer, sends ? peer : self, each.edge.value, each.microbatch};
  }

  void transfer(Stream& stream, DeviceState& device, const Instruction& each, Running& running) {
    const bool sends = each.op == Opcode::Send;
    const MessageKey key = key_of(stream, each, sends);
    Posted& posted = messages_[key];
    if (sends) {
      const SlotId slot = only(stream, each.inputs);
      if (!device.slots[slot.value] || device.slots[slot.value]->type >= Value::Type::Saved)
        fail(stream, "sends nothing");
      posted.sent.push_back(*device.slots[slot.value]);
      posted.source = slot;
      running.complete = !blocking_;
      posted.senders.push_back(blocking_ ? &stream : nullptr);
    } else {
      only(stream, each.outputs);
      running.complete = false;
      posted.receivers.push_back(&stream);
    }
    if (posted.sent.size() > 1 || posted.receivers.size() > 1)
      fail(stream, "uses a key that is in use");
    if (posted.sent.empty() || posted.receivers.empty())
      return;
    Stream& receiver = *posted.receivers.front();
    receiver.running->slots[instruction(receiver).outputs[0].value] = posted.sent.front();
    receiver.running->complete = true;
    if (posted.senders.front())
      posted.senders.front()->running->complete = true;
    messages_.erase(key);
  }

  /// Gradients on their way to a mirror are those of the sender's memory until the receive ends.
  struct Offer {
    Stream *sender = nullptr, *receiver = nullptr; ///< the sender, as long as it waits
    std::optional<size_t> owner;
  };

  void offer(Stream& stream, DeviceState&, const Instruction& each, Running& running) {
    const bool sends = each.op == Opcode::SendMirror;
    const MessageKey key = key_of(stream, each, sends);
    Offer& offer = offers_[key];
    if (sends ? offer.owner.has_value() : offer.receiver != nullptr)
      fail(stream, "uses a key that is in use");
    if (sends) {
      for_bucket(stream, [](const ParamState&) {}); // is held here
      offer.owner = stream.device;
      offer.sender = blocking_ ? &stream : nullptr;
      running.complete = !blocking_;
    } else {
      mirror(stream, each);
      offer.receiver = &stream;
      running.complete = false;
    }
    if (!offer.owner || !offer.receiver)
      return;
    offer.receiver->running->owner = offer.owner;
    offer.receiver->running->complete = true;
    if (offer.sender)
      offer.sender->running->complete = true;
    offers_.erase(key);
  }

  MirrorState& mirror(const Stream& stream, const Instruction& each) {
    auto& mirrors = devices_[stream.device].mirrors;
    const auto found =
        each.buckets.empty() ? mirrors.end() : mirrors.find({each.buckets[0], each.self});
    if (found == mirrors.end())
      fail(stream, "needs a mirror that the device does not keep");
    return found->second;
  }

  void take_gradients(MirrorState& mirror, const Instruction& each, const DeviceState& owner) {
    for (const auto& [at, term] : mirror.param)
      if (const auto held = owner.params.find(at.first);
          held != owner.params.end() && held->second.bucket == each.buckets[0])
        mirror.grad[at] = held->second.grad.at(at.second);
  }

  /// A mirror ends with what is mirrored.
  void collect_mirrors(std::map<std::string, std::vector<uint32_t>>& result,
                       const DeviceState& device) {
    for (const auto& [id, mirror] : device.mirrors) {
      const Group& group = set_.groups[set_.buckets[id.first.value].group.value];
      const DeviceIndex owner = group.devices.at(static_cast<size_t>(mirror.rank));
      const auto its = std::find_if(devices_.begin(), devices_.end(),
                                    [&](const DeviceState& d) { return d.index == owner; });
      for (const auto& [at, term] : mirror.param) {
        // Which device mirrors what makes no difference.
        const std::string name =
            fmt::format("{} of a mirror, part {}", model_.params[at.first].name, at.second);
        if (its == devices_.end() || !its->params.contains(at.first) ||
            its->params.at(at.first).param.at(at.second) != term)
          throw Failure(fmt::format("{}, on device {}, is not what device {} has", name,
                                    device.index, owner));
        result[name].push_back(term);
      }
    }
  }

  /// Those who meet in a collective: named by the members that each expects.
  std::vector<DeviceIndex> members_of(const Stream& stream, const Instruction& each) const {
    const int rank = each.group ? set_.rank_in(each.group, devices_[stream.device].index) : -1;
    if (rank < 0)
      fail(stream, "is in a group that the device is not in");
    if (is_bucket_op(each.op) &&
        (each.buckets.empty() || set_.buckets[each.buckets[0].value].group != each.group))
      fail(stream, "has no bucket of its group");
    return set_.members(set_.team_of(each, rank));
  }

  void collective(Stream& stream, const Instruction& each) {
    stream.running->complete = false;
    const std::vector<DeviceIndex> members = each.op == Opcode::Commit
                                                 ? set_.groups[set_.world.value].devices
                                                 : members_of(stream, each);
    auto& arrived = gatherings_[{members, each.edge.value, each.microbatch}];
    arrived.push_back(&stream);
    if (arrived.size() < members.size())
      return;
    const std::vector<Stream*> all = std::move(arrived);
    gatherings_.erase({members, each.edge.value, each.microbatch});
    for (Stream* other : all)
      if (instruction(*other).op != each.op ||
          (each.op != Opcode::Commit && instruction(*other).buckets != each.buckets))
        fail(stream, "meets another collective");
    if (each.op == Opcode::Commit)
      commit(all);
    else if (each.op == Opcode::Redistribute)
      move(all, members, each);
    else
      exchange(all, each);
    for (Stream* other : all)
      other->running->complete = true;
  }

  void redistribute(Stream& stream, const DeviceState& device, const Instruction& each,
                    Running& running) {
    const SlotId source = only(stream, each.inputs), target = only(stream, each.outputs);
    const auto how = each.group && each.self
                         ? move_between(set_.groups[each.group.value], set_.groups[each.self.value])
                         : std::nullopt;
    if (!how)
      fail(stream, "has no way to move it");
    if (!device.slots[source.value] || device.slots[source.value]->type >= Value::Type::Saved ||
        device.slots[source.value]->away)
      fail(stream, "moves nothing");
    running.moved = *device.slots[source.value];
    if (*how == Move::Slice) {
      const auto members = members_of(stream, each);
      const auto self = std::find(members.begin(), members.end(), device.index);
      running.moved.form =
          shared(terms_, running.moved.form,
                 {Layout::Tokens, self - members.begin(), static_cast<int64_t>(members.size())});
      running.slots[target.value] = running.moved;
      return;
    }
    const bool of_counts = model_.values[subject(stream, target)].is_counts;
    if (*how == Move::AllToAll && !of_counts) {
      if (each.inputs.size() < 3)
        fail(stream, "moves rows without counts");
      auto counts = [&](size_t i) {
        return terms_.of(read(stream, each.inputs[i], Value::Type::Tensor).form);
      };
      running.counts = {counts(1), counts(2)};
    }
    collective(stream, each);
  }

  /// Of a redistribute, once all ranks of the block are there.
  void move(const std::vector<Stream*>& all, const std::vector<DeviceIndex>& members,
            const Instruction& each) {
    auto ends = [&](const Instruction& its) {
      return std::pair(set_.groups[its.group.value].layout, set_.groups[its.self.value].layout);
    };
    std::vector<Stream*> by_rank;
    for (DeviceIndex member : members)
      for (Stream* stream : all)
        if (devices_[stream->device].index == member)
          by_rank.push_back(stream);
    std::vector<Form> brought;
    std::vector<Counts> counts;
    for (Stream* stream : by_rank) {
      if (ends(instruction(*stream)) != ends(each))
        fail(*stream, "meets another move");
      brought.push_back(stream->running->moved.form);
      if (stream->running->counts)
        counts.push_back(*stream->running->counts);
    }
    if (by_rank.size() != members.size() || (!counts.empty() && counts.size() != brought.size()))
      fail(*all[0], "meets another move");
    const auto how =
        move_between(set_.groups[each.group.value], set_.groups[each.self.value]).value();
    const Group &from = set_.groups[each.group.value], &to = set_.groups[each.self.value];
    const bool to_experts = to.layout == Layout::Experts;
    const int64_t outside = (to_experts ? to : from).outside;
    const auto moved = move_within_block(terms_, how, to_experts, outside, brought, counts);
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      Running& running = *by_rank[rank]->running;
      running.moved.form = moved[rank];
      running.slots[instruction(*by_rank[rank]).outputs[0].value] = running.moved;
    }
  }

  /// The norm: each device counts its parts of its buckets. That nothing changes what it reads
  /// between its arrival and the last one's is the executor's doing: it reads first.
  void commit(const std::vector<Stream*>& all) {
    std::vector<std::vector<int64_t>> counted;
    for (Stream* stream : all)
      for (BucketId bucket : instruction(*stream).buckets)
        for (ParamId param : set_.buckets[bucket.value].params) {
          const ParamState& held = state(*stream, param);
          const size_t part = held.counted();
          if (held.counts)
            counted.push_back({int64_t{param.value}, held.piece, static_cast<int64_t>(part),
                               int64_t{terms_.of(held.grad[part])}});
        }
    std::sort(counted.begin(), counted.end());
    std::vector<int64_t> key = {kNorm};
    for (const auto& each : counted)
      key.insert(key.end(), each.begin(), each.end());
    const uint32_t norm = terms_.of(std::move(key));
    for (Stream* stream : all)
      stream->running->norm = norm;
  }

  void exchange(const std::vector<Stream*>& all, const Instruction& each) {
    if (each.op == Opcode::ReduceScatter && set_.buckets[each.buckets[0].value].shard_grads)
      return shard_gradients(all);
    const bool gathers = each.op == Opcode::AllGather || each.op == Opcode::Gather;
    for (ParamId param : set_.buckets[each.buckets[0].value].params)
      for (size_t part = 0; part < state(*all[0], param).param.size(); ++part) {
        Form sum;
        for (Stream* stream : all)
          add(sum, state(*stream, param).grad[part]);
        sum = joined(terms_, sum, Layout::Partial);
        for (Stream* stream : all) {
          if (gathers) {
            for (Stream* owner : all)
              if (state(*owner, param).owns(part) && owner != stream)
                stream->running->params[{param.value, part}] = state(*owner, param).param[part];
          } else if (state(*stream, param).owns(part)) {
            stream->running->grads[{param.value, part}] = sum;
          }
        }
      }
  }

  /// Each member adds the sum of its own parts to what it keeps, and lets the whole go.
  void shard_gradients(const std::vector<Stream*>& all) {
    const Bucket& bucket = set_.buckets[instruction(*all[0]).buckets[0].value];
    for (ParamId param : bucket.params) {
      for (Stream* stream : all)
        if (!state(*stream, param).window)
          fail(*stream, "needs gradients that are not whole");
      for (Stream* stream : all) {
        ParamState& held = state(*stream, param);
        for (size_t part = 0; part < held.grad.size(); ++part) {
          if (!held.owns(part))
            continue;
          Form sum;
          for (Stream* other : all)
            add(sum, (*state(*other, param).window)[part]);
          sum = joined(terms_, sum, Layout::Partial);
          add(sum, held.grad[part]);
          stream->running->grads[{param.value, part}] = std::move(sum);
        }
      }
      for (Stream* stream : all)
        state(*stream, param).window.reset();
    }
  }

  std::map<std::string, std::vector<uint32_t>> collect() {
    std::map<std::string, std::vector<uint32_t>> result;
    for (const DeviceState& device : devices_) {
      for (size_t s = 0; s < device.slots.size(); ++s)
        if (device.slots[s])
          throw Failure(fmt::format("device {}: s{} is left behind", device.index, s));
      for (const auto& [param, held] : device.params) {
        std::string param_name = model_.params[param].name;
        if (held.pieces > 1)
          param_name += fmt::format(", piece {}", held.piece);
        if (held.window)
          throw Failure(fmt::format("the whole gradient of {} is left behind", param_name));
        for (size_t part = 0; part < held.param.size(); ++part) {
          const bool kept = !held.shard_params || held.owns(part);
          if (!kept && held.param[part] != terms_.of({kAbsent}))
            throw Failure(fmt::format("all of {} is left behind", param_name));
          // Which ranks keep a part that not all keep makes no difference.
          const std::string name = held.shard_params ? fmt::format("{}, part {}", param_name, part)
                                                     : fmt::format("{} of device {}, part {}",
                                                                   param_name, device.index, part);
          if (kept)
            result[name].push_back(held.param[part]);
          if (!held.grad[part].empty())
            result["gradient of " + name] = {terms_.of(held.grad[part])};
        }
      }
      collect_mirrors(result, device);
      for (const auto& [at, term] : device.applied)
        result[fmt::format("sum for {}", model_.params[at.first].name)].push_back(term);
      for (const auto& [microbatch, loss] : device.losses)
        result[fmt::format("loss @{}", microbatch)].push_back(loss);
    }
    for (auto& [name, values] : result)
      std::sort(values.begin(), values.end());
    return result;
  }

  const PlanSet& set_;
  const ModelSpec& model_;
  Terms& terms_;
  const SlotMemories& memories_;
  std::mt19937_64 random_;
  const bool blocking_, hurry_;
  std::vector<DeviceState> devices_;
  std::deque<Stream> streams_; ///< never moved
  std::map<MessageKey, Posted> messages_;
  std::map<MessageKey, Offer> offers_;
  std::map<std::tuple<std::vector<DeviceIndex>, uint32_t, int32_t>, std::vector<Stream*>>
      gatherings_; ///< by members and key
};

} // namespace

SymbolicRun run_symbolically(const PlanSet& plans, const ModelSpec& model, Terms& terms,
                             uint64_t seed, const SlotMemories& memories) {
  return Machine(plans, model, terms, seed, memories).run();
}

} // namespace piper::test
