#include "compiler/strategies/strategies.h"

#include "compiler/buckets.h"

#include <string>

namespace piper::compiler {

using namespace ir;

Strategy data_parallel(const PipelineShape& shape) {
  Strategy strategy;
  strategy.split({}, shape.microbatches);
  if (shape.replicas == 1) {
    strategy.place({}, {0}).fuse({});
    return strategy;
  }
  std::vector<DeviceIndex> devices;
  for (int r = 0; r < shape.replicas; ++r)
    devices.push_back(static_cast<DeviceIndex>(r));
  strategy.replicate(shape.replicate({}, devices));
  std::vector<CallId> calls;
  for (size_t c = 0; c < shape.model->calls.size(); ++c)
    calls.push_back(CallId(c));
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
