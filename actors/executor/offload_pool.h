// OffloadPool: the memory that a device offloads to. On the CPU it stands for a slower, larger one:
// a file without a name, mapped into memory, that the kernel writes out as it sees fit.
#pragma once

#include "ir/result.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace piper::executor {

class OffloadPool {
public:
  /// The file is made in `directory` (empty: the system's for temporary files) by the first use.
  static std::shared_ptr<OffloadPool> make(std::string directory);
  virtual ~OffloadPool() = default;

  /// A flat tensor there, with unspecified contents. What was freed is used again by tensors of the
  /// same size; the file shrinks when nothing is in use. Thread-safe; the pool lives as long as its
  /// tensors. Throws c10::OutOfMemoryError, naming the directory, where the file cannot grow.
  virtual at::Tensor empty(int64_t count, at::ScalarType dtype) = 0;

  virtual int64_t live() const = 0; ///< bytes in use
  virtual int64_t peak() const = 0;
};

} // namespace piper::executor
