// A TorchScript file: the code of its modules in memory, their weights where they lie in the file.
#pragma once

#include "ir/result.h"

#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

namespace piper::models {

/// A tensor attribute of `owner`, which may be replaced; `name` says where: "layers.0.weight".
using VisitTensor = std::function<void(torch::jit::Module& owner, const std::string& attribute,
                                       const std::string& name)>;
/// Visits the tensors of a module and of those inside of it.
void for_each_tensor(const torch::jit::Module& module, const VisitTensor& visit,
                     const std::string& prefix = "");

/// Immutable, thread-safe. Weights stay in the file until `load` copies those of a module.
class TorchscriptFile {
public:
  /// User errors: no such file, no TorchScript in it, an attribute that is a list of tensors.
  static Result<std::shared_ptr<const TorchscriptFile>> open(const std::string& path);
  ~TorchscriptFile();
  TorchscriptFile(const TorchscriptFile&) = delete;
  TorchscriptFile& operator=(const TorchscriptFile&) = delete;

  /// The module at a path such as "layers.0", or the whole one for "", with tensors of the meta
  /// device. User error: no such module, with those that there are.
  Result<torch::jit::Module> find(const std::string& path) const;
  /// The same module, a copy of its own, with its weights. What is one tensor in the file (weights
  /// that are tied) is one here. `path` must be one that `find` finds.
  torch::jit::Module load(const std::string& path) const;
  /// The same for names of one tensor; null for an empty one, and for no tensor.
  const void* identity(const std::string& name) const;
  /// Of the whole contents; empty for files from before PyTorch 2.1.
  const std::string& digest() const { return digest_; }

private:
  TorchscriptFile() = default;
  void map(const std::string& path);
  void read(const std::string& path);

  char* begin_ = nullptr; ///< the file, mapped
  size_t size_ = 0;
  std::string digest_;
  torch::jit::Module modules_;                ///< with tensors of the meta device
  std::map<std::string, at::Tensor> tensors_; ///< by name; their memory is the mapped file
};

} // namespace piper::models
