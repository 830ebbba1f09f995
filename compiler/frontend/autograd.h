// Running chunks: the calls of a chunk are one autograd graph, cut off from the rest of the model
// at detached leaves, so that a device can run any part of it forward now and backward later.
//
// Everything here is bound: tensors are found through pointers, and the vectors have their size.
#pragma once

#include "compiler/frontend/model.h"
#include "compiler/frontend/saved_tensors.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <string>
#include <vector>

namespace piper {

/// What a chunk keeps for a later pass: a Saved or a Deferred slot.
struct ChunkContext {
  std::vector<at::Tensor> leaves;   ///< Saved: its differentiable inputs
  torch::autograd::edge_list roots; ///< Saved: its outputs that will get a gradient. Deferred:
                                    ///< where the backward for weights goes on
  torch::autograd::variable_list gradients; ///< Deferred: of each root
  std::shared_ptr<SavedTensors> saved;      ///< if it can leave the device; else null
  void clear();
  /// Everything but the graph itself leaves for what `make(bytes)` gives, and comes back.
  void move_out(const std::function<at::Tensor(int64_t bytes)>& make);
  void move_in();
};

/// Forward of a chunk. `locals` are the values that it reads and makes.
struct ForwardChunk {
  struct Input {
    at::Tensor* source;
    uint32_t local;
    bool differentiable; ///< gets a leaf, in the order of the inputs
  };
  struct Call {
    std::string name;
    const std::function<Tensors(const Tensors&)>* forward;
    std::vector<uint32_t> inputs;  ///< locals
    std::vector<uint32_t> outputs; ///< locals
    Tensors arguments;             ///< scratch
  };
  struct Output {
    uint32_t local;
    at::Tensor* target;
  };
  std::vector<Input> inputs;
  std::vector<Call> calls;
  std::vector<Output> outputs; ///< handed out, detached
  std::vector<uint32_t> roots; ///< locals whose edges the context keeps
  std::vector<at::Tensor> locals;
  ChunkContext* context = nullptr; ///< null: without gradients

  /// Throws what the modules throw. A call that returns another number of tensors than the model
  /// says is a User error.
  Result<void> run();
  void clear() noexcept; ///< drops the scratch, also after a throw
};

/// Backward of a chunk, or its backward for inputs.
struct BackwardChunk {
  /// The gradient of one root: `parts` added left to right.
  struct Root {
    std::vector<at::Tensor*> parts;
  };
  ChunkContext* context = nullptr;
  ChunkContext* deferred = nullptr; ///< if not null, gets what the backward for weights needs
  std::vector<Root> roots;
  /// Where the gradient of each leaf goes, added to what is there; null: nowhere.
  std::vector<at::Tensor*> leaves;
  torch::autograd::variable_list gradients; ///< scratch

  void run();
};

/// `parts` added left to right. Never writes into one of them.
at::Tensor sum(const std::vector<at::Tensor*>& parts);

} // namespace piper
