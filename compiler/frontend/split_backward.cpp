#include "compiler/frontend/split_backward.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace piper {

namespace autograd = torch::autograd;
using autograd::Edge;
using autograd::Node;

namespace {

/// Frees what a node saved as soon as it has run. The engine does not, as it keeps the graph.
struct ReleaseWhenRun final : autograd::FunctionPostHook {
  explicit ReleaseWhenRun(Node* node_) : node(node_) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs,
                                     const autograd::variable_list& /*inputs*/) override {
    node->release_variables();
    return outputs;
  }
  Node* node;
};

/// The part of the autograd graph behind some roots, and what its nodes lead to.
class Reach {
public:
  Reach(const autograd::edge_list& roots, const autograd::edge_list& leaves) {
    for (const Edge& leaf : leaves)
      flags_[leaf.function.get()] = kLeaf;
    for (const Edge& root : roots)
      visit(root);
    find_early(roots);
    for (const auto& node : order_)
      for (const Edge& edge : node->next_edges())
        if (edge.function && (flags_[edge.function.get()] & kWeight))
          flags_[node.get()] |= kWeight;
  }

  /// Every node but leaves and parameters, those that others lead to first.
  const std::vector<std::shared_ptr<Node>>& order() const { return order_; }
  bool to_leaf(const Node* node) const { return flags_.at(node) & kLeaf; }
  /// Leads to parameters that can wait, and to no leaf.
  bool to_weights_alone(const Node* node) const { return flags_.at(node) == kWeight; }
  /// Parameters of one dimension that only nodes on the way to a leaf use.
  const std::vector<std::shared_ptr<Node>>& early() const { return early_; }

private:
  static constexpr uint8_t kLeaf = 1, kWeight = 2;

  static autograd::AccumulateGrad* parameter(Node* node) {
    return dynamic_cast<autograd::AccumulateGrad*>(node);
  }

  /// Depth first, without recursion: graphs are deeper than stacks.
  void visit(const Edge& root) {
    struct Frame {
      std::shared_ptr<Node> node;
      size_t next = 0;
      uint8_t flags = 0;
    };
    std::vector<Frame> stack;
    const auto enter = [&](const std::shared_ptr<Node>& node) {
      if (!node || !flags_.try_emplace(node.get(), 0).second)
        return false;
      if (parameter(node.get())) {
        parameters_.push_back(node);
        return false;
      }
      stack.push_back({node});
      return true;
    };
    enter(root.function);
    while (!stack.empty()) {
      Frame& top = stack.back();
      const auto& edges = top.node->next_edges();
      if (top.next < edges.size()) {
        const auto& next = edges[top.next].function;
        if (enter(next))
          continue; // comes back to this edge
        if (next)
          top.flags |= flags_[next.get()];
        ++top.next;
        continue;
      }
      flags_[top.node.get()] |= top.flags;
      order_.push_back(std::move(top.node));
      stack.pop_back();
    }
  }

  void find_early(const autograd::edge_list& roots) {
    std::unordered_map<const Node*, bool> late;
    for (const auto& node : parameters_)
      late[node.get()] = parameter(node.get())->variable.dim() > 1;
    const auto used_off_the_way = [&](const Node* node) {
      if (const auto found = late.find(node); found != late.end())
        found->second = true;
    };
    for (const Edge& root : roots)
      used_off_the_way(root.function.get());
    for (const auto& node : order_)
      if (!to_leaf(node.get()))
        for (const Edge& edge : node->next_edges())
          used_off_the_way(edge.function.get());
    for (const auto& node : parameters_)
      if (late[node.get()])
        flags_[node.get()] |= kWeight;
      else
        early_.push_back(node);
  }

  std::unordered_map<const Node*, uint8_t> flags_;
  std::vector<std::shared_ptr<Node>> order_, parameters_, early_;
};

autograd::variable_list differentiate(const autograd::edge_list& roots,
                                      const autograd::variable_list& gradients, bool keep_graph,
                                      bool accumulate, const autograd::edge_list& wanted) {
  return autograd::Engine::get_default_engine().execute(roots, gradients, keep_graph,
                                                        /*create_graph=*/false, accumulate, wanted);
}

/// As the engine would have.
void add_to_gradient(const at::Tensor& variable, const at::Tensor& gradient) {
  at::Tensor& sum = variable.mutable_grad();
  if (sum.defined())
    sum.add_(gradient);
  else
    sum = gradient;
}

} // namespace

void backward_inputs(const autograd::edge_list& roots, const autograd::variable_list& gradients,
                     const std::vector<at::Tensor>& leaves, ChunkContext& deferred) {
  at::AutoGradMode grad_mode(false);
  autograd::edge_list wanted;
  for (const at::Tensor& leaf : leaves)
    wanted.push_back(autograd::impl::gradient_edge(leaf));
  const Reach reach(roots, wanted);

  autograd::edge_list now_roots;
  autograd::variable_list now_gradients;
  for (size_t i = 0; i < roots.size(); ++i) {
    const bool now = reach.to_leaf(roots[i].function.get());
    (now ? now_roots : deferred.roots).push_back(roots[i]);
    (now ? now_gradients : deferred.gradients).push_back(gradients[i]);
  }
  if (now_roots.empty())
    return;

  for (const auto& parameter : reach.early())
    wanted.emplace_back(parameter, 0);
  const size_t first_kept = wanted.size();
  std::vector<std::pair<Node*, uintptr_t>> hooks;
  for (const auto& node : reach.order()) {
    if (!reach.to_leaf(node.get()))
      continue;
    const auto& edges = node->next_edges();
    const bool parts = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
      return edge.function && reach.to_weights_alone(edge.function.get());
    });
    if (!parts) {
      hooks.emplace_back(node.get(),
                         node->add_post_hook(std::make_unique<ReleaseWhenRun>(node.get())));
      continue;
    }
    // Here the way to a leaf and one to weights part.
    for (uint32_t input = 0; input < node->num_inputs(); ++input)
      wanted.emplace_back(node, input); // its incoming gradient
  }
  const autograd::variable_list found =
      differentiate(now_roots, now_gradients, /*keep_graph=*/true, /*accumulate=*/false, wanted);
  for (const auto& [node, hook] : hooks)
    node->del_post_hook(hook);

  for (size_t i = 0; i < leaves.size(); ++i)
    if (found[i].defined())
      leaves[i].mutable_grad() = found[i];
  for (size_t i = 0; i < reach.early().size(); ++i)
    if (const at::Tensor& gradient = found[leaves.size() + i]; gradient.defined())
      add_to_gradient(static_cast<autograd::AccumulateGrad*>(reach.early()[i].get())->variable,
                      gradient);
  for (size_t i = first_kept; i < wanted.size(); ++i)
    if (found[i].defined()) {
      deferred.roots.push_back(wanted[i]);
      deferred.gradients.push_back(found[i]);
    }
  // What has been computed is not computed again, nor kept: what a node saved refers to the nodes
  // before it, and these to the leaves.
  for (const auto& node : reach.order())
    if (reach.to_leaf(node.get()))
      for (Edge& edge : node->next_edges())
        if (edge.function && !reach.to_weights_alone(edge.function.get()))
          edge = Edge();
}

void backward_weights(ChunkContext& deferred) {
  at::AutoGradMode grad_mode(false);
  if (!deferred.roots.empty())
    differentiate(deferred.roots, deferred.gradients, /*keep_graph=*/false, /*accumulate=*/true,
                  {});
  deferred.roots.clear();
  deferred.gradients.clear();
}

} // namespace piper
