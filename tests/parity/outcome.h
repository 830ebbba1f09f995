// What a run has learned, and whether another one has learned the same: what parity tests share.
// Everything here fails the running test case where something goes wrong.
#pragma once

#include "tests/parity/cluster.h"

#include <initializer_list>

namespace piper::test {

struct Outcome {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

std::shared_ptr<const Model> made(Result<Model> model);

/// Clips to a global norm, which every parameter must enter once.
executor::OptimizerSpec clipping();

void started(Cluster& cluster, const ir::Strategy& strategy);
/// The next iterations.
Outcome learn(Cluster& cluster, int iterations = 3);
Outcome learn(const std::shared_ptr<const Model>& model, const ir::Strategy& strategy,
              uint32_t devices, const executor::OptimizerSpec& optimizer = {}, int iterations = 3);

/// To 1e-12 relative, and something was learned.
void check(const Outcome& got, const Outcome& want);

struct Entry {
  const char* expression;
  uint32_t devices;
};
/// Each with as many microbatches against one device, clipping.
void check_all(const std::shared_ptr<const Model>& model, int64_t microbatches,
               std::initializer_list<Entry> entries);

} // namespace piper::test
