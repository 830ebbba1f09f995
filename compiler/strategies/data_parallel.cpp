#include "compiler/strategies/strategies.h"

#include "compiler/buckets.h"

#include <string>

namespace piper::compiler {

using namespace ir;

std::vector<DeviceIndex> PipelineShape::devices(int rank) const {
  std::vector<DeviceIndex> list;
  for (int i = 0; i < replicas * tensor; ++i)
    list.push_back(static_cast<DeviceIndex>(rank * replicas * tensor + i));
  return list;
}

void PipelineShape::place(Strategy& strategy, const Filter& filter,
                          const std::vector<CallId>& calls,
                          const std::vector<DeviceIndex>& devices) const {
  if (tensor > 1)
    strategy.shard_tensor(filter, devices, static_cast<uint32_t>(tensor), sequence);
  if (replicas > 1)
    strategy.replicate({.filter = filter,
                        .devices = devices,
                        .shard_optimizer = zero >= 1,
                        .shard_grads = zero >= 2,
                        .shard_params = zero >= 3,
                        .shard_within = shard_within});
  else if (tensor == 1)
    strategy.place(filter, devices);
  std::vector<std::string> with_experts;
  for (CallId call : calls)
    if (model->call(call).cut == Cut::Experts)
      with_experts.push_back(model->call(call).name);
  if (experts > 1 && !with_experts.empty()) {
    Filter of_experts = filter;
    of_experts.add({"call", std::move(with_experts)});
    strategy.shard(std::move(of_experts), devices, static_cast<uint32_t>(experts));
  }
}

Strategy data_parallel(const PipelineShape& shape) {
  Strategy strategy;
  strategy.split({}, shape.microbatches);
  std::vector<CallId> calls;
  for (size_t c = 0; c < shape.model->calls.size(); ++c)
    calls.push_back(CallId(c));
  shape.place(strategy, {}, calls, shape.devices(0));
  if (shape.replicas == 1) {
    strategy.fuse({});
    return strategy;
  }
  const bool windows = shape.zero >= 2;
  const auto runs = cut_buckets(*shape.model, calls, windows ? kSegmentBucketMb : kDefaultBucketMb);
  if (runs.size() == 1) {
    strategy.fuse({});
    return strategy;
  }
  const auto names_of = [&](const std::vector<CallId>& run) {
    std::vector<std::string> names;
    for (CallId call : run)
      names.push_back(shape.model->call(call).name);
    return names;
  };
  if (windows) {
    for (const auto& run : runs)
      strategy.fuse({{"call", names_of(run)}});
    return strategy;
  }
  const int64_t last = shape.microbatches - 1;
  strategy.fuse({{"PASS", "F"}});
  if (last > 0) {
    std::vector<int64_t> others;
    for (int64_t m = 0; m < last; ++m)
      others.push_back(m);
    strategy.fuse({{"PASS", "B"}, {"MB", std::move(others)}});
  }
  for (const auto& run : runs)
    strategy.fuse({{"PASS", "B"}, {"MB", last}, {"call", names_of(run)}});
  return strategy;
}

} // namespace piper::compiler
