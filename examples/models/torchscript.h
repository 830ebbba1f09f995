// Any TorchScript module, composed of calls of its submodules. Initial weights are those in the
// file, whatever the seed; a device loads those of the submodules that are placed on it.
//
// A submodule must be a pure function of its inputs and parameters, as any module here: save it in
// evaluation mode if it has dropout. Parameters that need no gradient are constants. Parameters
// that are one in the file (tied weights) stay one.
#pragma once

#include "compiler/frontend/model.h"
#include "examples/models/rows.h"
#include "ir/model_spec.h"
#include "ir/result.h"

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace piper::models {

struct TorchscriptConfig {
  struct Call {
    std::string name;
    std::string module;             ///< path of a submodule: "layers.0"; empty: the whole module
    std::string method = "forward"; ///< one for all calls of a submodule
    /// Names of inputs and of calls; further outputs of a call are "call.1", "call.2", …
    std::vector<std::string> inputs;
    std::vector<ir::Tag> annotations; ///< outermost first
  };
  std::string file;            ///< that torch.jit.save wrote
  int64_t batch = 16;          ///< rows of the global batch
  std::vector<RowType> inputs; ///< floating ones become `dtype`
  std::vector<Call> calls;
  /// The output of a call; or, of the values in `loss_of`, "cross_entropy" (logits and integer
  /// classes, the mean) or "mse" (the mean of squares of their difference).
  std::string loss;
  std::vector<std::string> loss_of;
  c10::ScalarType dtype = c10::kFloat; ///< of all floating parameters, buffers and inputs
};

/// User errors: what TorchscriptFile and ModelBuilder refuse, an unknown method, value or loss.
Result<Model> torchscript(const TorchscriptConfig& config, DataSource data);

} // namespace piper::models
