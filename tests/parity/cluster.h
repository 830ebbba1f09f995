// Cluster: the devices of a job in one process, without actors. Compiles, runs, changes strategy.
// What every parity test trains with.
#pragma once

#include "actors/executor/device.h"
#include "compiler/compile.h"
#include "transport/loopback/fabric.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace piper::test {

class Cluster {
public:
  Cluster(std::shared_ptr<const Model> model, uint32_t devices,
          executor::OptimizerSpec optimizer = {}, uint64_t seed = 1);

  /// Prepares, initializes and commits the plans as they are, verified or not.
  Result<void> start(ir::PlanSet plans);
  Result<void> start(const ir::Strategy& strategy);
  /// Moves the state to the new strategy's layout and switches.
  Result<void> change(const ir::Strategy& strategy);
  /// The plans of a strategy under the next epoch.
  Result<ir::PlanSet> compile(const ir::Strategy& strategy) const;

  /// The loss of the next iteration: the mean over replicas of each microbatch, in rank order, then
  /// over microbatches in order.
  Result<double> step();
  Result<std::vector<double>> steps(int count);

  /// Of every parameter, as its first holder has it; all holders must agree bit by bit.
  Result<std::map<std::string, at::Tensor>> parameters();
  const ir::PlanSet& plans() const { return *plans_; }
  executor::Device& device(uint32_t index) { return *devices_[index]; }
  /// What a device reported of the latest iteration.
  const executor::IterationResult& last(uint32_t device) const { return results_[device]; }

private:
  /// Runs `work` on every device, each on a thread of its own; the first error by device.
  template <class Work> Result<void> on_all(Work work);

  std::shared_ptr<const Model> model_;
  executor::OptimizerSpec optimizer_;
  std::unique_ptr<transport::LoopbackFabric> fabric_;
  std::vector<std::unique_ptr<executor::Device>> devices_;
  std::shared_ptr<const ir::PlanSet> plans_;
  std::vector<executor::IterationResult> results_; ///< by device
  int64_t iteration_ = 0;
};

/// The largest relative difference of two lists of losses, or of two sets of parameters (relative
/// to the parameter's largest element); 0 means equal bit by bit, infinity that they don't match
/// up.
double difference(const std::vector<double>& a, const std::vector<double>& b);
double difference(const std::map<std::string, at::Tensor>& a,
                  const std::map<std::string, at::Tensor>& b);

} // namespace piper::test
