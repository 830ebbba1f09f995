#include "compiler/passes/fuse.h"

#include "compiler/passes/node_selector.h"

#include <algorithm>
#include <array>

namespace piper::compiler {

using namespace ir;

namespace {

/// One microbatch: its nodes by call, and the runs into which `fuse` gathers them. A run is named
/// by its first call, as is a chunk; a call without a node (no Backward) is in no run.
struct Microbatch {
  std::array<std::vector<const Node*>, kCallPasses> nodes;
  std::array<std::vector<CallId>, kCallPasses> runs;
  std::vector<CallId> chunk;

  const Node* node(CallPass pass, size_t call) const {
    return nodes[static_cast<size_t>(pass)][call];
  }
  const std::vector<CallId>& run(CallPass pass) const { return runs[static_cast<size_t>(pass)]; }
  std::vector<CallId>& run(CallPass pass) { return runs[static_cast<size_t>(pass)]; }
};

constexpr CallPass kForward = CallPass::Forward, kBackward = CallPass::Backward,
                   kWeight = CallPass::Weight;
constexpr std::array kAllPasses = {kForward, kBackward, kWeight};

void add_once(std::vector<ValueRef>& list, const ValueRef& ref) {
  if (std::find(list.begin(), list.end(), ref) == list.end())
    list.push_back(ref);
}

/// Where the gradient of a value, or a part of it, is among those that a node names.
GroupId place_of(const std::vector<ValueRef>& refs, uint32_t value) {
  for (const ValueRef& ref : refs)
    if ((ref.kind == ValueKind::Gradient || ref.kind == ValueKind::GradientPart) &&
        ref.subject == value)
      return ref.at;
  return {};
}

class Fuser {
public:
  explicit Fuser(const Graph& graph);
  Result<void> find_runs(const CompileOptions& options);
  void cut_chunks();
  Graph rewrite() const;

private:
  Result<void> find_segmented();
  bool may_join(CallPass pass, CallId a, CallId b) const;
  std::vector<CallId> run_calls(const Microbatch& m, CallPass pass, CallId run) const;
  std::vector<std::vector<CallId>> run_chunks(const Microbatch& m, CallPass pass, CallId run) const;
  std::vector<ValueRef> kept(const Node& node, ValueKind kind, CallPass reader) const;
  std::vector<ValueRef> outer_parts(const Microbatch& m, int32_t mb, uint32_t value) const;
  ValueRef outer_gradient(const Microbatch& m, int32_t mb, uint32_t value) const;
  Node forward_node(int32_t mb, CallId run) const;
  Node backward_node(int32_t mb, CallId run) const;
  Node weight_node(int32_t mb, CallId run) const;
  void merge_edges(const Microbatch& m, const std::vector<CallId>& calls, Node& node) const;

  const Graph& graph_;
  const ModelSpec& model_;
  NodeSelector selector_;
  std::vector<Microbatch> microbatches_;
  std::vector<uint32_t> segments_;               ///< of each call
  std::vector<bool> again_, away_;               ///< calls that are recomputed, or offloaded
  std::vector<std::vector<CallId>> readers_;     ///< with a backward, of each value, in order
  std::vector<std::vector<CallId>> all_readers_; ///< of each value, in order
};

Fuser::Fuser(const Graph& graph) : graph_(graph), model_(*graph.model), selector_(graph) {
  const size_t calls = model_.calls.size();
  microbatches_.resize(graph.microbatches);
  for (int32_t mb = 0; mb < graph.microbatches; ++mb) {
    Microbatch& m = microbatches_[mb];
    for (CallPass pass : kAllPasses) {
      auto& nodes = m.nodes[static_cast<size_t>(pass)];
      nodes.resize(calls);
      m.run(pass).resize(calls);
      for (size_t c = 0; c < calls; ++c)
        if ((nodes[c] = selector_.node(pass, mb, CallId(c))))
          m.run(pass)[c] = CallId(c);
    }
  }
  readers_.resize(model_.values.size());
  all_readers_.resize(model_.values.size());
  for (size_t c = 0; c < calls; ++c) {
    for (ValueId v : model_.calls[c].inputs)
      all_readers_[v.value].push_back(CallId(c));
    if (const Node* backward = microbatches_[0].node(kBackward, c))
      for (const ValueRef& ref : backward->outputs)
        if (ref.kind == ValueKind::Gradient || ref.kind == ValueKind::GradientPart)
          readers_[ref.subject].push_back(CallId(c));
  }
}

/// The calls of which `recompute` and `offload` keep nothing on the device for a while.
Result<void> Fuser::find_segmented() {
  const Strategy& strategy = *graph_.strategy;
  segments_ = model_.segments();
  again_.resize(model_.calls.size());
  away_.resize(model_.calls.size());
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* recompute = std::get_if<Recompute>(&strategy.directives[d].body);
    const auto* offload = std::get_if<Offload>(&strategy.directives[d].body);
    if (!recompute && !(offload && offload->activations))
      continue;
    PIPER_TRY(const std::vector<CallId> calls,
              select_calls(graph_, d, recompute ? recompute->filter : offload->filter));
    for (CallId call : calls)
      (recompute ? again_ : away_)[call.value] = true;
  }
  return {};
}

/// One instruction needs at once what all its calls keep, so that one over several segments would
/// undo what recomputing or offloading each of them saves.
bool Fuser::may_join(CallPass pass, CallId a, CallId b) const {
  if (segments_[a.value] == segments_[b.value])
    return true;
  const bool away = away_[a.value] || away_[b.value];
  const bool again = again_[a.value] || again_[b.value];
  return !away && !(again && pass == kBackward);
}

Result<void> Fuser::find_runs(const CompileOptions& options) {
  PIPER_CHECK_OK(find_segmented());
  const Strategy& strategy = *graph_.strategy;
  for (size_t d = 0; d < strategy.directives.size(); ++d) {
    const auto* fuse = std::get_if<Fuse>(&strategy.directives[d].body);
    const TagMatch* pass = fuse ? find_term(fuse->filter, "PASS") : nullptr;
    if (!fuse || fuse->update ||
        (pass && pass->indices == std::vector<TagIndex>{std::string("REDUCE")}))
      continue; // those are buckets'
    auto selected = selector_.select(d, fuse->filter);
    if (!selected.ok()) {
      if (options.kind == PlanKind::Eval)
        continue; // it names backwards, which an evaluation has none of
      return std::move(selected).error();
    }
    // The list is by microbatch, pass and call, so candidates are neighbours in it.
    const std::vector<const Node*>& nodes = *selected;
    for (size_t i = 1; i < nodes.size(); ++i) {
      const Node &a = *nodes[i - 1], &b = *nodes[i];
      if (a.id.op != b.id.op || a.microbatch() != b.microbatch() || a.id.at != b.id.at ||
          a.stream != b.stream)
        continue;
      if (graph_.groups[a.id.at.value].layout == Layout::Weights)
        continue; // what the one makes is summed before the other reads it
      Microbatch& m = microbatches_[a.microbatch()];
      const CallPass which = pass_of(a.id.op);
      if (!may_join(which, CallId(a.id.subject), CallId(b.id.subject)))
        continue;
      bool adjacent = true; // nothing of this pass lies between them in the model
      for (size_t c = a.id.subject + 1; c < b.id.subject; ++c)
        adjacent &= which != kForward && !m.node(which, c);
      if (!adjacent)
        continue;
      auto& runs = m.run(which);
      const CallId from = runs[b.id.subject], to = runs[a.id.subject];
      for (size_t c = b.id.subject; c < runs.size() && (!runs[c] || runs[c] == from); ++c)
        if (runs[c])
          runs[c] = to;
    }
  }
  return {};
}

/// A forward run is cut where the backwards of its calls belong to different runs; calls without a
/// backward stay with those before them.
void Fuser::cut_chunks() {
  for (Microbatch& m : microbatches_) {
    m.chunk.resize(model_.calls.size());
    std::array<CallId, kCallPasses> last; // run of each pass that the chunk is in
    CallId chunk;
    for (size_t c = 0; c < m.chunk.size(); ++c) {
      const bool cut = std::any_of(kAllPasses.begin(), kAllPasses.end(), [&](CallPass pass) {
        const CallId run = m.run(pass)[c], before = last[static_cast<size_t>(pass)];
        return pass == kForward ? run != before : run && before && run != before;
      });
      if (cut) {
        chunk = CallId(c);
        last = {};
      }
      for (CallPass pass : kAllPasses)
        if (const CallId run = m.run(pass)[c])
          last[static_cast<size_t>(pass)] = run;
      m.chunk[c] = chunk;
    }
  }
}

std::vector<CallId> Fuser::run_calls(const Microbatch& m, CallPass pass, CallId run) const {
  std::vector<CallId> calls;
  const auto& runs = m.run(pass);
  for (size_t c = run.value; c < runs.size() && (!runs[c] || runs[c] == run); ++c)
    if (runs[c])
      calls.push_back(CallId(c));
  return calls;
}

/// The chunks that hold the run's calls, whole: forward and backward name the same ones.
std::vector<std::vector<CallId>> Fuser::run_chunks(const Microbatch& m, CallPass pass,
                                                   CallId run) const {
  std::vector<std::vector<CallId>> chunks;
  CallId last;
  for (CallId call : run_calls(m, pass, run)) {
    const CallId chunk = m.chunk[call.value];
    if (chunk == last)
      continue;
    last = chunk;
    chunks.emplace_back();
    for (size_t c = chunk.value; c < m.chunk.size() && m.chunk[c] == chunk; ++c)
      chunks.back().push_back(CallId(c));
  }
  return chunks;
}

/// What flows into the gradient of a value from other runs than the one that makes it, in the order
/// in which Add sums: last reader first. A run of readers gives one part, named by its first.
std::vector<ValueRef> Fuser::outer_parts(const Microbatch& m, int32_t mb, uint32_t value) const {
  std::vector<ValueRef> parts;
  const auto& readers = readers_[value];
  const CallId home = m.run(kBackward)[model_.values[value].producer.value];
  CallId last;
  for (size_t i = readers.size(); i-- > 0;) {
    const CallId run = m.run(kBackward)[readers[i].value];
    if (run == home)
      continue; // summed inside
    if (run != last)
      parts.push_back({.kind = ValueKind::GradientPart,
                       .subject = value,
                       .part = readers[i].value,
                       .microbatch = mb,
                       .at = place_of(m.node(kBackward, readers[i].value)->outputs, value)});
    parts.back().part = readers[i].value;
    last = run;
  }
  return parts;
}

/// What the run that makes the value reads as its gradient: the only outer part under the name of
/// the whole, or the sum at its home.
ValueRef Fuser::outer_gradient(const Microbatch& m, int32_t mb, uint32_t value) const {
  const std::vector<ValueRef> parts = outer_parts(m, mb, value);
  return {
      .kind = ValueKind::Gradient,
      .subject = value,
      .microbatch = mb,
      .at = parts.size() == 1
                ? parts.front().at
                : place_of(m.node(kBackward, model_.values[value].producer.value)->inputs, value)};
}

/// Temporal edges of all members, with merged nodes under their new names.
void Fuser::merge_edges(const Microbatch& m, const std::vector<CallId>& calls, Node& node) const {
  node.after.clear();
  for (CallId call : calls)
    for (TemporalEdge edge : m.node(pass_of(node.id.op), call.value)->after) {
      if (is_compute(edge.before.op)) {
        const Microbatch& other = microbatches_[edge.before.microbatch];
        edge.before.subject = other.run(pass_of(edge.before.op))[edge.before.subject].value;
      }
      if (edge.before != node.id &&
          std::find(node.after.begin(), node.after.end(), edge) == node.after.end())
        node.after.push_back(edge);
    }
}

/// What each chunk of the node keeps for the pass `reader`, where that has any of its calls.
std::vector<ValueRef> Fuser::kept(const Node& node, ValueKind kind, CallPass reader) const {
  const Microbatch& m = microbatches_[node.microbatch()];
  std::vector<ValueRef> refs;
  for (const auto& chunk : node.chunks)
    if (std::any_of(chunk.begin(), chunk.end(),
                    [&](CallId c) { return m.node(reader, c.value) != nullptr; }))
      refs.push_back({.kind = kind,
                      .subject = chunk.front().value,
                      .microbatch = node.microbatch(),
                      .at = node.id.at});
  return refs;
}

Node Fuser::forward_node(int32_t mb, CallId run) const {
  const Microbatch& m = microbatches_[mb];
  const std::vector<CallId> calls = run_calls(m, kForward, run);
  Node node = *m.node(kForward, run.value);
  node.chunks = run_chunks(m, kForward, run);
  node.inputs.clear();
  node.outputs = kept(node, ValueKind::Saved, kBackward);
  auto inside = [&](CallId call) { return m.run(kForward)[call.value] == run; };
  for (CallId call : calls) {
    for (const ValueRef& ref : m.node(kForward, call.value)->inputs)
      if (const CallId producer = model_.values[ref.subject].producer;
          !producer || !inside(producer))
        add_once(node.inputs, ref);
    for (const ValueRef& ref : m.node(kForward, call.value)->outputs) {
      if (ref.kind != ValueKind::Activation)
        continue;
      const auto& readers = all_readers_[ref.subject];
      if (ref.subject == model_.loss.value || !std::all_of(readers.begin(), readers.end(), inside))
        node.outputs.push_back(ref);
    }
  }
  merge_edges(m, calls, node);
  return node;
}

Node Fuser::backward_node(int32_t mb, CallId run) const {
  const Microbatch& m = microbatches_[mb];
  const std::vector<CallId> calls = run_calls(m, kBackward, run);
  Node node = *m.node(kBackward, run.value);
  node.chunks = run_chunks(m, kBackward, run);
  node.inputs = kept(node, ValueKind::Saved, kBackward);
  node.outputs.clear();
  if (node.id.op == Op::BackwardInput)
    node.outputs = kept(node, ValueKind::Deferred, kWeight);
  std::vector<ValueRef> grads;
  for (CallId call : calls) {
    for (const ValueRef& ref : m.node(kBackward, call.value)->inputs)
      if (ref.kind == ValueKind::Gradient) {
        if (ref.subject == model_.loss.value)
          add_once(node.inputs, ref);
        else if (!outer_parts(m, mb, ref.subject).empty())
          add_once(node.inputs, outer_gradient(m, mb, ref.subject));
      }
    for (const ValueRef& ref : m.node(kBackward, call.value)->outputs) {
      if (ref.kind == ValueKind::Deferred)
        continue; // by chunk, above
      if (ref.kind == ValueKind::WeightGrad) {
        grads.push_back(ref);
        continue;
      }
      const CallId producer = model_.values[ref.subject].producer;
      if (producer && m.run(kBackward)[producer.value] == run)
        continue; // summed inside
      const std::vector<ValueRef> parts = outer_parts(m, mb, ref.subject);
      if (parts.size() == 1) {
        add_once(node.outputs, outer_gradient(m, mb, ref.subject));
        continue;
      }
      for (const ValueRef& part : parts)
        if (m.run(kBackward)[part.part] == run)
          add_once(node.outputs, part);
    }
  }
  node.outputs.insert(node.outputs.end(), grads.begin(), grads.end());
  merge_edges(m, calls, node);
  return node;
}

Node Fuser::weight_node(int32_t mb, CallId run) const {
  const Microbatch& m = microbatches_[mb];
  const std::vector<CallId> calls = run_calls(m, kWeight, run);
  Node node = *m.node(kWeight, run.value);
  node.chunks = run_chunks(m, kWeight, run);
  node.inputs = kept(node, ValueKind::Deferred, kWeight);
  node.outputs.clear();
  for (CallId call : calls)
    for (const ValueRef& ref : m.node(kWeight, call.value)->outputs)
      node.outputs.push_back(ref);
  merge_edges(m, calls, node);
  return node;
}

Graph Fuser::rewrite() const {
  return map_regions(graph_, [&](const Region& region) {
    std::vector<Node> nodes;
    for (const Node& node : region.nodes()) {
      const CallId call(node.id.subject);
      switch (node.id.op) {
      case Op::Forward:
        if (microbatches_[node.microbatch()].run(kForward)[call.value] == call)
          nodes.push_back(forward_node(node.microbatch(), call));
        break;
      case Op::Backward:
      case Op::BackwardInput:
        if (microbatches_[node.microbatch()].run(kBackward)[call.value] == call)
          nodes.push_back(backward_node(node.microbatch(), call));
        break;
      case Op::BackwardWeight:
        if (microbatches_[node.microbatch()].run(kWeight)[call.value] == call)
          nodes.push_back(weight_node(node.microbatch(), call));
        break;
      case Op::Add: {
        const int32_t mb = node.microbatch();
        Node add = node;
        add.inputs = outer_parts(microbatches_[mb], mb, node.id.subject);
        if (add.inputs.size() > 1)
          nodes.push_back(std::move(add));
        break;
      }
      default:
        nodes.push_back(node);
      }
    }
    return nodes;
  });
}

} // namespace

Result<Graph> fuse(const CompileOptions& options, const Graph& graph) {
  Fuser fuser(graph);
  PIPER_CHECK_OK(fuser.find_runs(options));
  fuser.cut_chunks();
  return fuser.rewrite();
}

} // namespace piper::compiler
