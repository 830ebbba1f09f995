#include "actors/executor/profile.h"

#include "actors/executor/bench.h"
#include "actors/executor/errors.h"
#include "actors/executor/optimizer.h"
#include "actors/executor/state.h"
#include "actors/executor/stream.h"
#include "compiler/frontend/autograd.h"
#include "compiler/frontend/split_backward.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

namespace piper::executor {

using namespace ir;

namespace {

using Times = std::vector<double>;

/// An iteration is a sum of many calls, so that it has their slow moments too.
double mean(const Times& times) {
  return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
}

template <class Work> double seconds_of(Work&& work) {
  const auto start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

enum class Pass : uint8_t { Forward, Backward, BackwardInput, BackwardWeight };
constexpr size_t kPasses = 4;

/// The model on a number of rows, forward call by call and back, each call a chunk of its own.
class Sweep {
public:
  Sweep(const Model& model, int64_t rows, uint64_t seed) : model_(model), rows_(rows) {
    const ModelSpec& spec = *model.spec;
    for (uint32_t m = 0; m < model.modules.size(); ++m) {
      modules_.push_back(model.build(m, seed));
      if (modules_.back().module)
        for (at::Tensor& parameter : modules_.back().module->parameters())
          parameter.mutable_grad() = at::zeros_like(parameter);
    }
    values_.resize(spec.values.size());
    gradients_.resize(spec.values.size());
    contexts_.resize(spec.calls.size());
    deferred_.resize(spec.calls.size());
    find_gradients();
    for (size_t c = 0; c < spec.calls.size(); ++c)
      bind(CallId(c));
  }

  /// Feeds the inputs. Errors are the data source's.
  Result<void> feed() {
    for (ValueId input : model_.spec->inputs) {
      at::Tensor rows = model_.data(
          {.input = model_.spec->value(input).name, .iteration = 0, .first_row = 0, .rows = rows_});
      if (!rows.defined())
        return user_error("the data source gave nothing", model_.spec->value(input).name);
      values_[input.value] = std::move(rows);
    }
    return {};
  }

  /// `on_call(call, pass, run)` runs each pass of each call; `split`: the backward in two.
  template <class OnCall> Result<void> run(bool split, OnCall&& on_call) {
    PIPER_CHECK_OK(feed());
    const size_t calls = forwards_.size();
    for (size_t c = 0; c < calls; ++c) {
      Result<void> done;
      on_call(CallId(c), Pass::Forward, [&] { done = forwards_[c].run(); });
      PIPER_CHECK_OK(done);
    }
    const ModelValue& loss = model_.spec->value(model_.spec->loss);
    gradients_[model_.spec->loss.value] =
        at::ones(loss.type.shape(rows_), to_scalar_type(loss.type.dtype));
    for (size_t c = calls; c-- > 0;) {
      backwards_[c].deferred = split ? &deferred_[c] : nullptr;
      if (runs_backward_[c])
        on_call(CallId(c), split ? Pass::BackwardInput : Pass::Backward,
                [&] { backwards_[c].run(); });
      for (ValueId v : model_.spec->calls[c].outputs) { // read by nobody from here on
        values_[v.value].reset();
        gradients_[v.value].reset();
      }
      if (runs_backward_[c] && split)
        on_call(CallId(c), Pass::BackwardWeight, [&] { backward_weights(deferred_[c]); });
    }
    return {};
  }

private:
  /// Which values the loss depends on differentiably.
  void find_gradients() {
    const ModelSpec& spec = *model_.spec;
    has_gradient_.resize(spec.values.size());
    runs_backward_.resize(spec.calls.size());
    has_gradient_[spec.loss.value] = true;
    for (size_t c = spec.calls.size(); c-- > 0;) {
      for (ValueId v : spec.calls[c].outputs)
        runs_backward_[c] = runs_backward_[c] || has_gradient_[v.value];
      for (ValueId v : spec.calls[c].inputs)
        if (runs_backward_[c] && spec.value(v).differentiable)
          has_gradient_[v.value] = true;
    }
  }

  void bind(CallId id) {
    const ModelCall& call = model_.spec->call(id);
    ForwardChunk& forward = forwards_.emplace_back();
    BackwardChunk& backward = backwards_.emplace_back();
    forward.context = backward.context = &contexts_[id.value];
    ForwardChunk::Call& made = forward.calls.emplace_back();
    made.name = call.name;
    made.forward = &modules_[model_.call_module[id.value]].forward;
    made.arguments.resize(call.inputs.size());
    std::vector<ValueId> locals;
    const auto local = [&](ValueId v) {
      const auto found = std::find(locals.begin(), locals.end(), v);
      if (found == locals.end())
        locals.push_back(v);
      return static_cast<uint32_t>(std::find(locals.begin(), locals.end(), v) - locals.begin());
    };
    for (ValueId v : call.inputs) {
      const size_t known = locals.size();
      const bool differentiable = model_.spec->value(v).differentiable;
      made.inputs.push_back(local(v));
      if (locals.size() == known) // reads it twice
        continue;
      forward.inputs.push_back({&values_[v.value], made.inputs.back(), differentiable});
      if (differentiable)
        backward.leaves.push_back(&gradients_[v.value]);
    }
    for (ValueId v : call.outputs) {
      made.outputs.push_back(local(v));
      forward.outputs.push_back({made.outputs.back(), &values_[v.value]});
      if (has_gradient_[v.value]) {
        forward.roots.push_back(made.outputs.back());
        backward.roots.push_back({{&gradients_[v.value]}});
      }
    }
    forward.locals.resize(locals.size());
    forward.context->leaves.resize(backward.leaves.size());
    forward.context->roots.resize(forward.roots.size());
    backward.gradients.resize(backward.roots.size());
  }

  const Model& model_;
  const int64_t rows_;
  std::vector<BuiltModule> modules_;
  std::vector<at::Tensor> values_, gradients_; ///< by ValueId
  std::vector<bool> has_gradient_, runs_backward_;
  std::vector<ChunkContext> contexts_, deferred_;
  std::vector<ForwardChunk> forwards_;
  std::vector<BackwardChunk> backwards_;
};

/// A chunk that does as good as nothing: what remains is the chunk itself.
void measure_chunk(Profile& profile) {
  const std::function<Tensors(const Tensors&)> identity = [](const Tensors& in) {
    return Tensors{in[0].view_as(in[0])};
  };
  at::Tensor value = at::ones({1}), gradient = at::ones({1}), target, made;
  ChunkContext context;
  context.leaves.resize(1);
  context.roots.resize(1);
  ForwardChunk forward;
  forward.inputs = {{&value, 0, true}};
  forward.calls = {{"identity", &identity, {0}, {1}, Tensors(1)}};
  forward.outputs = {{1, &made}};
  forward.roots = {1};
  forward.locals.resize(2);
  forward.context = &context;
  BackwardChunk backward;
  backward.context = &context;
  backward.roots = {{{&gradient}}};
  backward.leaves = {&target};
  backward.gradients.resize(1);
  Times forwards, backwards;
  for (int round = 0; round < 500; ++round) {
    forwards.push_back(seconds_of([&] { (void)forward.run(); }));
    backwards.push_back(seconds_of([&] { backward.run(); }));
    target.reset();
  }
  profile.forward_chunk = mean(forwards);
  profile.backward_chunk = mean(backwards);
}

/// Seconds of each call on the first device, while the others do the same.
Result<void> measure_time(const Model& model, const ProfileOptions& options, int64_t rows,
                          Profile& profile) {
  std::vector<std::unique_ptr<Sweep>> sweeps;
  for (int d = 0; d < options.devices; ++d)
    sweeps.push_back(std::make_unique<Sweep>(model, rows, options.seed));

  std::vector<std::array<Times, kPasses>> times(profile.calls.size());
  std::optional<Error> failed;
  int rounds = 0;
  std::barrier meet(options.devices);
  const auto work = [&](int device) {
    at::set_num_threads(options.threads); // of this thread alone
    const auto measured = [&](CallId id, Pass pass, auto&& run) {
      const double seconds = seconds_of(run);
      if (device == 0)
        times[id.value][static_cast<size_t>(pass)].push_back(seconds);
    };
    const auto unmeasured = [](CallId, Pass, auto&& run) { run(); };
    try {
      Sweep& sweep = *sweeps[static_cast<size_t>(device)];
      auto done = sweep.run(true, unmeasured);
      if (device == 0 && done.ok()) {
        const double once = seconds_of([&] { done = sweep.run(false, unmeasured); });
        rounds = std::clamp(
            static_cast<int>(std::chrono::duration<double>(options.time).count() / once), 6, 500);
      }
      meet.arrive_and_wait(); // all know the number of rounds
      for (int round = 0; round < rounds && done.ok(); ++round) {
        meet.arrive_and_wait();
        done = sweep.run(round % 2 == 1, measured);
      }
      if (device == 0 && !done.ok())
        failed = done.error();
    } catch (...) {
      if (device == 0)
        failed = error_in_flight("profile");
    }
    meet.arrive_and_drop();
  };
  {
    std::vector<std::jthread> devices;
    for (int d = 0; d < options.devices; ++d)
      devices.emplace_back(work, d);
  }
  if (failed)
    return *failed;
  for (size_t c = 0; c < profile.calls.size(); ++c) {
    CallSample& sample = profile.calls[c].samples.emplace_back(CallSample{.rows = rows});
    const auto beside = [&](Pass pass, double chunk) {
      const Times& its = times[c][static_cast<size_t>(pass)];
      return its.empty() ? 0 : std::max(0.0, mean(its) - chunk);
    };
    sample.forward = beside(Pass::Forward, profile.forward_chunk);
    sample.backward = beside(Pass::Backward, profile.backward_chunk);
    sample.backward_input = beside(Pass::BackwardInput, profile.backward_chunk);
    sample.backward_weight = beside(Pass::BackwardWeight, profile.backward_chunk);
  }
  return {};
}

/// Sums, copies and updates of arrays that don't fit a cache, on every device at once. What is
/// added or copied has just been written by another device, as in a collective.
void measure_arrays(const ProfileOptions& options, Profile& profile) {
  constexpr int64_t kCount = 4 << 20;
  constexpr int kRounds = 9;
  const auto devices = static_cast<size_t>(options.devices);
  std::vector<std::array<at::Tensor, 4>> arrays(devices);
  for (auto& of_device : arrays)
    for (at::Tensor& array : of_device)
      array = at::ones({kCount});
  std::barrier meet(options.devices);
  const auto sweep = [&](size_t device, Profile& figures) {
    auto& own = arrays[device];
    at::Tensor& written = arrays[(device + 1) % devices][1];
    const auto seconds = [&](auto&& work) {
      Times times;
      for (int round = 0; round <= kRounds; ++round) {
        own[1].fill_(1e-3);
        meet.arrive_and_wait();
        times.push_back(seconds_of(work));
        meet.arrive_and_wait();
      }
      times.erase(times.begin()); // first touch
      return mean(times) / static_cast<double>(kCount);
    };
    float* const data[] = {own[0].mutable_data_ptr<float>(), written.mutable_data_ptr<float>(),
                           own[2].mutable_data_ptr<float>(), own[3].mutable_data_ptr<float>()};
    figures.add = seconds([&] { own[0].add_(written); }) / sizeof(float);
    figures.copy =
        seconds([&] { std::memcpy(data[0], data[1], kCount * sizeof(float)); }) / sizeof(float);
    const UpdateStep step{.lr = 1e-9};
    const OptimizerSpec& spec = options.optimizer;
    figures.update = seconds([&] {
      if (spec.kind == OptimizerSpec::Kind::AdamW)
        adamw(spec, step, data[0], own[1].mutable_data_ptr<float>(), data[2], data[3], kCount);
      else
        sgd(spec, step, data[0], own[1].mutable_data_ptr<float>(),
            spec.momentum > 0 ? data[2] : nullptr, kCount);
    });
  };
  std::vector<Profile> others(devices - 1);
  std::vector<std::jthread> threads;
  for (size_t d = 1; d < devices; ++d)
    threads.emplace_back([&, d] {
      at::set_num_threads(options.threads); // of this thread alone
      sweep(d, others[d - 1]);
    });
  sweep(0, profile);
}

} // namespace

Result<Profile> profile_model(const Model& model, const ProfileOptions& options) {
  at::AutoGradMode no_grad(false);
  Profile profile;
  profile.calls.resize(model.spec->calls.size());
  try {
    const int threads = at::get_num_threads();
    at::set_num_threads(options.threads);
    measure_chunk(profile);
    for (int64_t rows : options.rows)
      PIPER_CHECK_OK(measure_time(model, options, rows, profile));
    measure_arrays(options, profile);
    at::set_num_threads(threads);
  } catch (...) {
    return error_in_flight("profile");
  }
  PIPER_TRY(const DispatchFigures many, measure_dispatch());
  PIPER_TRY(const DispatchFigures one, measure_dispatch(1));
  profile.instruction = many.one_stream_ns * 1e-9;
  profile.iteration = one.one_stream_ns * 1e-9;
  return profile;
}

} // namespace piper::executor
