// Model: what a user hands to a session. The plain description that the compiler reads, and the
// factories from which a device builds the modules that are placed on it.
#pragma once

#include "ir/model_spec.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace piper {

using Tensors = std::vector<at::Tensor>;

/// A built module: what a device calls. `module` is null for a plain function. `forward` is called
/// from one thread at a time per device, with autograd on in training, and must be a pure function
/// of its inputs and parameters.
struct BuiltModule {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors& inputs)> forward;
};

/// Which of `count` equal pieces of a module that can be cut.
struct Piece {
  int64_t index = 0, count = 1;
  auto operator<=>(const Piece&) const = default;
};

/// A module of the model, not built yet. Several calls may name one (a module called twice).
struct ModuleFactory {
  std::string name;
  std::function<BuiltModule()> make;
  /// One piece: with that part of each parameter that is cut. Empty for a module that cannot be
  /// cut.
  std::function<BuiltModule(Piece)> make_part;
  /// Logical parameter of each of the module's own, by its name in the module, in the order of
  /// `named_parameters()`.
  std::vector<std::pair<std::string, ir::ParamId>> params;
};

/// What a device asks the data source for: the rows [first_row, first_row + rows) of the global
/// batch of an iteration.
struct BatchRequest {
  std::string input;
  int64_t iteration = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  bool held_out = false; ///< evaluation: rows that training never sees
};
/// Must be a pure function of the request, callable from several threads: devices feed themselves,
/// and a replayed iteration or another layout sees the same rows.
using DataSource = std::function<at::Tensor(const BatchRequest&)>;

/// Fills the parameter `name` in place. Must depend on nothing but its arguments, so that initial
/// weights don't depend on the strategy. Returns false to keep what the module's constructor made
/// (which was seeded by (seed, module name)).
using Initializer = std::function<bool(const std::string& name, at::Tensor& tensor, uint64_t seed)>;

struct Model {
  std::shared_ptr<const ir::ModelSpec> spec;
  std::vector<ModuleFactory> modules;
  std::vector<uint32_t> call_module; ///< of each call: index into `modules`
  Initializer initializer;           ///< may be empty
  DataSource data;

  /// Builds module `index` on the CPU, its random initial weights a function of (seed, name) alone,
  /// then runs the initializer. Thread-safe. Throws what the factory throws.
  BuiltModule build(uint32_t index, uint64_t seed) const;
  /// The same of one piece, with unspecified weights.
  BuiltModule build_part(uint32_t index, uint64_t seed, Piece piece) const;
};

} // namespace piper
