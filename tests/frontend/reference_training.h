// Plain single-device training of a Model, written by hand: all calls forward in order, one
// backward, PyTorch's update formulas. Knows nothing of strategies, plans or buckets, so that it
// can be what they are compared with.
#pragma once

#include "actors/executor/device.h"
#include "compiler/frontend/model.h"

#include <torch/torch.h>

#include <cmath>
#include <map>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

namespace piper::testing {

class ReferenceTrainer {
public:
  /// Plain: PyTorch's formulas, tensor by tensor. Fused: LibTorch's own fused AdamW, for speed.
  enum class Update { Plain, Fused };

  /// The global batch is cut into `microbatches` equal parts, whose gradients accumulate.
  ReferenceTrainer(const Model& model, uint64_t seed, executor::OptimizerSpec optimizer,
                   int64_t microbatches = 1, Update update = Update::Plain)
      : model_(model), optimizer_(optimizer), microbatches_(microbatches), update_(update) {
    params_.resize(model.spec->params.size());
    for (uint32_t m = 0; m < model.modules.size(); ++m) {
      modules_.push_back(model.build(m, seed));
      for (const auto& [own_name, id] : model.modules[m].params)
        add_holder(params_[id.value], modules_.back().module->named_parameters()[own_name]);
    }
    for (Param& param : params_)
      for (at::Tensor* state : {&param.moment1, &param.moment2})
        *state = at::zeros_like(param.value());
  }

  /// One iteration; the mean loss over the global batch, before the update.
  double step(int64_t iteration) {
    double total = 0;
    for (int64_t m = 0; m < microbatches_; ++m) {
      at::Tensor loss = forward(iteration, m, false);
      loss.backward(at::full_like(loss, 1.0 / static_cast<double>(microbatches_)));
      total += loss.item<double>();
    }
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> grads = take_gradients();
    clip(grads);
    update(grads, lr_at(iteration));
    return total / static_cast<double>(microbatches_);
  }

  /// Mean loss on held-out rows.
  double evaluate(int64_t iteration) {
    at::NoGradGuard no_grad;
    double total = 0;
    for (int64_t m = 0; m < microbatches_; ++m)
      total += forward(iteration, m, true).item<double>();
    return total / static_cast<double>(microbatches_);
  }

  /// Of the last iteration, before clipping.
  double grad_norm() const { return grad_norm_; }

  /// By logical name; the storage is the trainer's.
  std::map<std::string, at::Tensor> parameters() const {
    std::map<std::string, at::Tensor> result;
    for (size_t i = 0; i < params_.size(); ++i)
      result[model_.spec->params[i].name] = params_[i].value().detach();
    return result;
  }

private:
  /// A logical parameter: the tensors of the modules that hold it, which share one storage.
  struct Param {
    std::vector<at::Tensor> holders;
    at::Tensor moment1, moment2;
    const at::Tensor& value() const { return holders.front(); }
  };

  static void add_holder(Param& param, at::Tensor tensor) {
    for (const at::Tensor& holder : param.holders)
      if (holder.is_same(tensor))
        return;
    if (!param.holders.empty())
      tensor.set_data(param.value().detach());
    param.holders.push_back(tensor);
  }

  at::Tensor forward(int64_t iteration, int64_t microbatch, bool held_out) {
    const ir::ModelSpec& spec = *model_.spec;
    const int64_t rows = spec.batch / microbatches_;
    std::vector<at::Tensor> values(spec.values.size());
    for (ir::ValueId id : spec.inputs)
      values[id.value] =
          model_.data({spec.value(id).name, iteration, microbatch * rows, rows, held_out});
    for (size_t c = 0; c < spec.calls.size(); ++c) {
      Tensors inputs;
      for (ir::ValueId id : spec.calls[c].inputs)
        inputs.push_back(values[id.value]);
      Tensors outputs = modules_[model_.call_module[c]].forward(inputs);
      for (size_t i = 0; i < outputs.size(); ++i)
        values[spec.calls[c].outputs[i].value] = outputs[i];
    }
    return values[spec.loss.value];
  }

  /// Of each parameter, summed over its holders.
  std::vector<at::Tensor> take_gradients() {
    std::vector<at::Tensor> grads;
    for (Param& param : params_) {
      at::Tensor sum;
      for (at::Tensor& holder : param.holders) {
        at::Tensor& grad = holder.mutable_grad();
        if (grad.defined())
          sum = sum.defined() ? sum + grad : grad;
        grad = at::Tensor();
      }
      grads.push_back(sum.defined() ? sum : at::zeros_like(param.value()));
    }
    return grads;
  }

  void clip(std::vector<at::Tensor>& grads) {
    double squares = 0;
    if (optimizer_.clip_norm > 0)
      for (const at::Tensor& grad : grads)
        squares += grad.square().sum().item<double>();
    grad_norm_ = std::sqrt(squares);
    const double factor = optimizer_.clip_norm / (grad_norm_ + 1e-6);
    if (optimizer_.clip_norm > 0 && factor < 1)
      for (at::Tensor& grad : grads)
        grad = grad * factor;
  }

  double lr_at(int64_t iteration) const {
    const auto& o = optimizer_;
    if (iteration < o.warmup)
      return o.lr * static_cast<double>(iteration + 1) / static_cast<double>(o.warmup);
    if (o.decay == 0)
      return o.lr;
    const double done = std::min(1.0, static_cast<double>(iteration - o.warmup) /
                                          static_cast<double>(o.decay - o.warmup));
    return o.min_lr + (o.lr - o.min_lr) * (1 + std::cos(std::numbers::pi * done)) / 2;
  }

  void update(const std::vector<at::Tensor>& grads, double lr) {
    ++steps_;
    const auto& o = optimizer_;
    if (o.kind == executor::OptimizerSpec::Kind::AdamW && update_ == Update::Fused) {
      std::vector<at::Tensor> values, first, second,
          steps(params_.size(), at::full({}, static_cast<double>(steps_), at::kFloat));
      for (Param& param : params_) {
        values.push_back(param.value());
        first.push_back(param.moment1);
        second.push_back(param.moment2);
      }
      at::_fused_adamw_(values, grads, first, second, {}, steps, lr, o.beta1, o.beta2,
                        o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false);
      return;
    }
    for (size_t i = 0; i < params_.size(); ++i) {
      at::Tensor value = params_[i].value();
      at::Tensor &m = params_[i].moment1, &v = params_[i].moment2;
      const at::Tensor& grad = grads[i];
      if (o.kind == executor::OptimizerSpec::Kind::AdamW) {
        const auto t = static_cast<double>(steps_);
        const double correction1 = 1 - std::pow(o.beta1, t), correction2 = 1 - std::pow(o.beta2, t);
        value.mul_(1 - lr * o.weight_decay);
        m.lerp_(grad, 1 - o.beta1);
        v.mul_(o.beta2).addcmul_(grad, grad, 1 - o.beta2);
        at::Tensor denominator = (v.sqrt() / std::sqrt(correction2)).add_(o.eps);
        value.addcdiv_(m, denominator, -lr / correction1);
      } else {
        at::Tensor direction = grad + o.weight_decay * value;
        if (o.momentum != 0)
          direction = m.mul_(o.momentum).add_(direction);
        value.sub_(direction, lr);
      }
    }
  }

  const Model model_;
  const executor::OptimizerSpec optimizer_;
  const int64_t microbatches_;
  const Update update_;
  std::vector<BuiltModule> modules_;
  std::vector<Param> params_;
  int64_t steps_ = 0;
  double grad_norm_ = 0;
};

} // namespace piper::testing
