#include "compiler/frontend/call_memory.h"

#include "compiler/frontend/autograd.h"
#include "compiler/frontend/dtypes.h"
#include "compiler/frontend/infer.h"
#include "compiler/frontend/memory.h"
#include "compiler/frontend/split_backward.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>

namespace piper {

namespace {

using ir::ValueId;

/// What is live after each allocation and each release, beyond what was before.
using Trace = std::vector<int64_t>;

/// One way through the call at one number of rows.
struct Run {
  Trace forward, backward, backward_weight;
  int64_t kept = 0;     ///< after the forward, beside `keeps` and outputs
  int64_t deferred = 0; ///< after the backward for inputs, beside what follows
  int64_t outputs_beyond = 0, gradients_beyond = 0;
  std::vector<ValueId> keeps, defers, defers_gradients;
};

enum class Mode : uint8_t { Inference, Whole, Halves };

int64_t storage_bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.storage().nbytes());
}

/// The call as a chunk of its own, its inputs and the gradients of its outputs charged to nobody.
class Subject {
public:
  Subject(const BuiltModule& module, const ir::ModelCall& call, const ir::ModelSpec& spec,
          int64_t rows)
      : call_(call), spec_(spec), account_(MemoryAccount::make(0)),
        holder_(account_->holder("call")) {
    ForwardChunk::Call& made = forward_.calls.emplace_back();
    made.name = call.name;
    made.forward = &module.forward;
    made.arguments.resize(call.inputs.size());
    for (ValueId v : call.inputs) {
      const bool fresh = !locals_.contains(v);
      made.inputs.push_back(local(v));
      if (!fresh)
        continue;
      inputs_.push_back(v);
      const ir::ModelValue& value = spec.value(v);
      values_[v] = at::zeros(value.type.shape(rows), to_scalar_type(value.type.dtype));
      forward_.inputs.push_back({&values_[v], made.inputs.back(), value.differentiable});
      if (value.differentiable)
        leaves_.push_back(v);
    }
    if (call.counts) // all rows go to the first expert
      for (ValueId v : call.inputs)
        if (v != call.counts && spec.value(v).type.batch_dim == 0) {
          values_[call.counts].view(-1)[0] = values_[v].size(0);
          break;
        }
    for (ValueId v : call.outputs) {
      made.outputs.push_back(local(v));
      forward_.outputs.push_back({made.outputs.back(), &values_[v]});
      if (!spec.value(v).differentiable)
        continue;
      const ir::TensorType& type = spec.value(v).type;
      gradients_[v] = at::zeros(type.shape(rows), to_scalar_type(type.dtype));
      forward_.roots.push_back(made.outputs.back());
      backward_.roots.push_back({{&gradients_[v]}});
    }
    for (ValueId v : leaves_)
      backward_.leaves.push_back(&gradients_of_inputs_[v]);
    forward_.locals.resize(locals_.size());
    backward_.gradients.resize(backward_.roots.size());
    context_.leaves.resize(leaves_.size());
    context_.roots.resize(forward_.roots.size());
    backward_.context = &context_;
    rows_ = rows;
  }

  Result<Run> run(Mode mode) {
    Run run;
    forward_.context = mode == Mode::Inference ? nullptr : &context_;
    Result<void> done;
    run.forward = traced([&] { done = forward_.run(); });
    PIPER_CHECK_OK(done);
    const int64_t outputs = bytes_of(call_.outputs, values_);
    run.outputs_beyond = beyond(call_.outputs, values_);
    run.kept = account_->live() - outputs;
    if (mode == Mode::Inference)
      return run;
    for (size_t i = 0; i < inputs_.size(); ++i)
      if (keeps_input(inputs_[i]))
        run.keeps.push_back(inputs_[i]);
    for (ValueId v : call_.outputs)
      if (is_held(values_[v]))
        run.keeps.push_back(v);

    backward_.deferred = mode == Mode::Halves ? &deferred_ : nullptr;
    run.backward = traced([&] { backward_.run(); });
    run.gradients_beyond = beyond(leaves_, gradients_of_inputs_);
    if (mode == Mode::Whole)
      return run;
    run.deferred = account_->live() - outputs - bytes_of(leaves_, gradients_of_inputs_);
    for (const auto* list : {&std::as_const(inputs_), &call_.outputs})
      for (ValueId v : *list)
        if (is_held(values_[v]))
          run.defers.push_back(v);
    for (auto* tensors : {&gradients_, &gradients_of_inputs_})
      for (auto& [v, tensor] : *tensors)
        if (is_held(tensor))
          run.defers_gradients.push_back(v);
    run.backward_weight = traced([&] { backward_weights(deferred_); });
    return run;
  }

private:
  uint32_t local(ValueId v) {
    return locals_.try_emplace(v, static_cast<uint32_t>(locals_.size())).first->second;
  }
  template <class Work> Trace traced(Work&& work) {
    Trace trace;
    HolderScope scope(&holder_);
    const int64_t before = account_->live();
    account_->record(&trace);
    try {
      work();
    } catch (...) {
      account_->record(nullptr);
      throw;
    }
    account_->record(nullptr);
    for (int64_t& live : trace)
      live -= before;
    return trace;
  }

  /// Something beside this object's tensors refers to it or its memory.
  bool is_held(const at::Tensor& tensor) const {
    size_t same = 0;
    std::set<const void*> sharing;
    for (const auto* tensors : {&values_, &gradients_, &gradients_of_inputs_})
      for (const auto& [v, other] : *tensors) {
        same += other.is_same(tensor);
        if (!other.defined() || !other.storage().is_alias_of(tensor.storage()))
          continue;
        sharing.insert(other.unsafeGetTensorImpl());
        if (other.is_view() && other._base().use_count() == 1) // what it is a view of is its own
          sharing.insert(other._base().unsafeGetTensorImpl());
      }
    return tensor.use_count() > same || tensor.storage().use_count() > sharing.size();
  }
  bool keeps_input(ValueId v) {
    const auto leaf = std::find(leaves_.begin(), leaves_.end(), v);
    if (leaf == leaves_.end())
      return is_held(values_[v]);
    // The leaf shares the memory; the context and the node that fills its gradient refer to it.
    const at::Tensor& kept = context_.leaves[static_cast<size_t>(leaf - leaves_.begin())];
    return kept.storage().use_count() > 2 || kept.use_count() > 2;
  }

  /// Of the memory behind the tensors that is the call's own, each piece once.
  int64_t bytes_of(const std::vector<ValueId>& ids, std::map<ValueId, at::Tensor>& tensors) {
    std::set<const void*> seen;
    for (ValueId v : inputs_)
      seen.insert(values_[v].storage().data());
    for (const auto& [v, gradient] : gradients_)
      seen.insert(gradient.storage().data());
    int64_t bytes = 0;
    for (ValueId v : ids)
      if (seen.insert(tensors[v].storage().data()).second)
        bytes += storage_bytes(tensors[v]);
    return bytes;
  }
  int64_t beyond(const std::vector<ValueId>& ids, std::map<ValueId, at::Tensor>& tensors) const {
    int64_t bytes = 0;
    for (ValueId v : ids)
      bytes += std::max<int64_t>(0, storage_bytes(tensors[v]) - spec_.value(v).type.bytes(rows_));
    return bytes;
  }

  const ir::ModelCall& call_;
  const ir::ModelSpec& spec_;
  int64_t rows_ = 0;
  const MemoryAccount::Ptr account_; ///< outlives all tensors below
  Holder& holder_;
  std::map<ValueId, uint32_t> locals_;
  std::vector<ValueId> inputs_, leaves_; ///< each once
  std::map<ValueId, at::Tensor> values_, gradients_, gradients_of_inputs_;
  ChunkContext context_, deferred_;
  ForwardChunk forward_;
  BackwardChunk backward_;
};

constexpr int64_t kFewRows = 2, kMoreRows = 3;

ir::RowBytes affine(int64_t few, int64_t more) {
  const int64_t per_row = (more - few) / (kMoreRows - kFewRows);
  return {few - per_row * kFewRows, per_row};
}

/// Of traces whose moments correspond, those moments that are the largest at some number of rows.
ir::PeakBytes peak(const Trace& few, const Trace& more) {
  std::vector<ir::RowBytes> all;
  if (few.size() == more.size())
    for (size_t i = 0; i < few.size(); ++i)
      all.push_back(affine(few[i], more[i]));
  else // the kernels chose other ways
    all.push_back(affine(*std::max_element(few.begin(), few.end()),
                         *std::max_element(more.begin(), more.end())));
  std::erase_if(all, [](const ir::RowBytes& moment) {
    return moment.fixed + moment.per_row <= 0 && moment.per_row <= 0;
  });
  // By slope, steepest first; of the others only what is more at one row than all before.
  std::sort(all.begin(), all.end(), [](const ir::RowBytes& a, const ir::RowBytes& b) {
    return std::pair(a.per_row, a.fixed) > std::pair(b.per_row, b.fixed);
  });
  ir::PeakBytes peak;
  for (const ir::RowBytes& moment : all)
    if (peak.moments.empty() || moment.at(1) > peak.moments.back().at(1))
      peak.moments.push_back(moment);
  return peak;
}

class OneThread {
public:
  OneThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

private:
  int before_;
};

} // namespace

Result<ir::CallMemory> measure_memory(const BuiltModule& module, const ir::ModelCall& call,
                                      const ir::ModelSpec& spec) {
  const OneThread one_thread; // as a device has
  ir::CallMemory memory;
  if (module.module) {
    for (at::Tensor& parameter : module.module->parameters())
      parameter.mutable_grad() = at::zeros_like(parameter);
    for (const at::Tensor& buffer : module.module->buffers())
      memory.buffers += static_cast<int64_t>(buffer.nbytes());
  }
  const auto run = [&](Mode mode, int64_t rows) -> Result<Run> {
    try {
      return Subject(module, call, spec, rows).run(mode);
    } catch (const std::exception& error) {
      return user_error(fmt::format("its backward fails: {}", first_line(error)), {},
                        fmt::format("it was tried with {} rows", rows));
    }
  };
  const auto both = [&](Mode mode) -> Result<std::pair<Run, Run>> {
    PIPER_TRY(Run few, run(mode, kFewRows));
    PIPER_TRY(Run more, run(mode, kMoreRows));
    return std::pair(std::move(few), std::move(more));
  };
  {
    PIPER_TRY(const auto runs, both(Mode::Inference));
    memory.inference = peak(runs.first.forward, runs.second.forward);
  }
  {
    PIPER_TRY(const auto runs, both(Mode::Whole));
    const auto& [few, more] = runs;
    memory.forward = peak(few.forward, more.forward);
    memory.saved = affine(few.kept, more.kept);
    memory.keeps = few.keeps;
    memory.outputs_beyond = affine(few.outputs_beyond, more.outputs_beyond);
    memory.backward = peak(few.backward, more.backward);
    memory.gradients_beyond = affine(few.gradients_beyond, more.gradients_beyond);
  }
  PIPER_TRY(const auto runs, both(Mode::Halves));
  const auto& [few, more] = runs;
  memory.backward_input = peak(few.backward, more.backward);
  memory.deferred = affine(few.deferred, more.deferred);
  memory.defers = few.defers;
  memory.defers_gradients = few.defers_gradients;
  memory.backward_weight = peak(few.backward_weight, more.backward_weight);
  return memory;
}

} // namespace piper
