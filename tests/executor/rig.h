// Small models, and devices that train them in one process.
#pragma once

#include "actors/executor/device.h"
#include "compiler/compile.h"
#include "transport/loopback/fabric.h"

#include <memory>
#include <string>
#include <vector>

namespace piper::test {

/// Four calls a -> b -> c -> head with skip connections: `a` is read by b, c and head. float64.
/// Each call uses an input once, so that its gradient is one sum over the readers however the model
/// is cut: where a reader of several uses a value twice, its two parts are added first.
std::shared_ptr<const Model> skip_model(int64_t batch = 12);
/// `inner` is called twice, by "first" and "second"; the output layer's weight is tied to that of
/// the embedding at the start.
std::shared_ptr<const Model> shared_model(int64_t batch = 12);
/// A copy with another data source.
std::shared_ptr<const Model> with_data(const Model& model, DataSource data);

/// Trains the whole model as one autograd graph, by hand.
class Reference {
public:
  Reference(const Model& model, executor::DeviceOptions options);
  /// The loss of each microbatch.
  std::vector<double> step(int64_t iteration, int64_t microbatches);
  double loss(int64_t iteration); ///< on held-out rows
  double grad_norm() const { return grad_norm_; }
  /// By ParamId.
  const std::vector<at::Tensor>& params() const { return params_; }

private:
  at::Tensor forward(int64_t iteration, int64_t first_row, int64_t rows, bool held_out);
  const Model& model_;
  executor::DeviceOptions options_;
  std::vector<BuiltModule> modules_;
  std::vector<at::Tensor> params_, moment1_, moment2_;
  double steps_ = 0, grad_norm_ = 0;
};

/// N devices over loopback that run what the compiler makes of a strategy.
class Rig {
public:
  Rig(std::shared_ptr<const Model> model, uint32_t devices, executor::DeviceOptions options = {});
  ~Rig();

  /// Compiles and prepares everywhere. `edit` may change the plans before.
  using Edit = std::function<void(ir::PlanSet&)>;
  Result<void> prepare(const ir::Strategy& strategy, ir::Epoch epoch, const Edit& edit = {});
  /// The first strategy: prepares, initializes and commits.
  Result<void> start(const ir::Strategy& strategy, const Edit& edit = {});
  /// Moves to another strategy.
  Result<void> change(const ir::Strategy& strategy);

  /// An iteration on all devices, each in a thread of its own. The first error, if any.
  Result<std::vector<executor::IterationResult>> run(int64_t iteration);
  Result<std::vector<executor::IterationResult>> evaluate(int64_t iteration);
  /// Mean of the losses of all devices.
  static double mean_loss(const std::vector<executor::IterationResult>& results);

  executor::Device& device(uint32_t index) { return *devices_[index]; }
  transport::LoopbackFabric& fabric() { return *fabric_; }
  /// By ParamId; of the first device that holds it. Refuses copies that differ.
  std::vector<at::Tensor> params();

private:
  template <class Work> auto on_all(Work work);
  std::shared_ptr<const Model> model_;
  std::unique_ptr<transport::LoopbackFabric> fabric_;
  std::vector<std::unique_ptr<executor::Device>> devices_;
  std::shared_ptr<const ir::PlanSet> train_;
  ir::Epoch epoch_ = 0;
};

/// Options with AdamW and a large learning rate, so that a wrong gradient shows.
executor::DeviceOptions fast_options();
/// The largest difference relative to the largest element; 0: bitwise equal.
double difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

} // namespace piper::test
