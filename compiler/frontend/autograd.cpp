#include "compiler/frontend/autograd.h"

#include "compiler/frontend/split_backward.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

namespace piper {

namespace autograd = torch::autograd;

void ChunkContext::clear() {
  for (at::Tensor& leaf : leaves)
    leaf.reset();
  for (autograd::Edge& root : roots)
    root.function.reset();
  gradients.clear();
  if (saved)
    saved->clear();
}

namespace {

/// Leaves the shape, which is that of its gradient. What autograd needs of a leaf's contents it has
/// saved; but where hooks do that it refers to the leaf, too.
void empty(at::Tensor& leaf) {
  if (!leaf.defined())
    return;
  at::Tensor shape = at::empty({0}, leaf.options());
  shape.unsafeGetTensorImpl()->set_sizes_and_strides(
      leaf.sizes(), std::vector<int64_t>(static_cast<size_t>(leaf.dim())));
  leaf.set_data(shape);
}

} // namespace

void ChunkContext::move_out(const std::function<at::Tensor(int64_t bytes)>& make) {
  saved->move_out(make);
  for (at::Tensor& leaf : leaves)
    empty(leaf);
  for (at::Tensor& gradient : gradients) {
    const at::Tensor away = make(static_cast<int64_t>(gradient.nbytes()));
    gradient = away.view(gradient.scalar_type()).view(gradient.sizes()).copy_(gradient);
  }
}

void ChunkContext::move_in() {
  saved->move_in();
  for (at::Tensor& gradient : gradients)
    gradient = gradient.clone();
}

Result<void> ForwardChunk::run() {
  at::AutoGradMode grad_mode(context != nullptr);
  const SavedTensors::Scope scope(context ? context->saved.get() : nullptr);
  size_t leaf = 0;
  for (const Input& input : inputs) {
    locals[input.local] = *input.source;
    if (context && input.differentiable) {
      at::Tensor& kept = context->leaves[leaf++];
      kept = input.source->detach();
      kept.set_requires_grad(true);
      locals[input.local] = kept;
    }
  }
  for (Call& call : calls) {
    for (size_t i = 0; i < call.inputs.size(); ++i)
      call.arguments[i] = locals[call.inputs[i]];
    Tensors made = (*call.forward)(call.arguments);
    for (at::Tensor& argument : call.arguments)
      argument.reset();
    if (made.size() != call.outputs.size())
      return user_error(fmt::format("the call '{}' returned {} tensors, but the model has {}",
                                    call.name, made.size(), call.outputs.size()));
    for (size_t i = 0; i < made.size(); ++i)
      locals[call.outputs[i]] = std::move(made[i]);
  }
  // Edges rather than the outputs themselves: an output that no backward formula needs is gone as
  // soon as its readers are done with it.
  if (context)
    for (size_t i = 0; i < roots.size(); ++i)
      if (const at::Tensor& made = locals[roots[i]]; made.requires_grad())
        context->roots[i] = autograd::impl::gradient_edge(made);
  for (const Output& output : outputs)
    *output.target = locals[output.local].detach();
  clear();
  return {};
}

void ForwardChunk::clear() noexcept {
  for (at::Tensor& local : locals)
    local.reset();
  for (Call& call : calls)
    for (at::Tensor& argument : call.arguments)
      argument.reset();
}

at::Tensor sum(const std::vector<at::Tensor*>& parts) {
  at::Tensor total = *parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    if (i == 1)
      total = total + *parts[i];
    else
      total.add_(*parts[i]);
  }
  return total;
}

void BackwardChunk::run() {
  at::AutoGradMode grad_mode(false);
  bool all = !roots.empty();
  for (size_t i = 0; i < roots.size(); ++i) {
    gradients[i] = sum(roots[i].parts);
    all = all && context->roots[i].is_valid();
  }
  auto& engine = autograd::Engine::get_default_engine();
  auto differentiate = [&](const autograd::edge_list& edges, const autograd::variable_list& grads) {
    if (deferred)
      backward_inputs(edges, grads, context->leaves, *deferred);
    else // adds to the .grad of parameters and of leaves
      engine.execute(edges, grads, /*keep_graph=*/false, /*create_graph=*/false,
                     /*accumulate_grad=*/true);
  };
  if (all) {
    differentiate(context->roots, gradients);
  } else {
    // Some output doesn't depend on anything that has a gradient.
    autograd::edge_list edges;
    autograd::variable_list grads;
    for (size_t i = 0; i < roots.size(); ++i)
      if (context->roots[i].is_valid()) {
        edges.push_back(context->roots[i]);
        grads.push_back(gradients[i]);
      }
    if (!edges.empty())
      differentiate(edges, grads);
  }
  for (at::Tensor& gradient : gradients)
    gradient.reset();
  if (deferred && deferred->saved) {
    deferred->saved->take(*context->saved);
    for (at::Tensor& leaf : context->leaves)
      empty(leaf);
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (!leaves[i])
      continue;
    at::Tensor gradient = std::move(context->leaves[i].mutable_grad());
    if (!gradient.defined())
      gradient = at::zeros_like(context->leaves[i]);
    *leaves[i] = leaves[i]->defined() ? *leaves[i] + gradient : std::move(gradient);
  }
  context->clear();
}

} // namespace piper
