// How parameters are cut into buckets: shared by the pass that makes them and by the builders that
// fuse the backward up to where a bucket is complete.
#pragma once

#include "ir/model_spec.h"

#include <cstdint>
#include <vector>

namespace piper::compiler {

/// Bytes of a bucket where `replicate` says nothing, as PyTorch's DistributedDataParallel.
inline constexpr double kDefaultBucketMb = 25;
/// The same where gradients or parameters are sharded: a bucket a segment, as
/// FullyShardedDataParallel wraps each block.
inline constexpr double kSegmentBucketMb = 1e-9;

/// Cuts calls (in trace order) into runs, from the last one back, so that each run's own parameters
/// reach `bucket_mb` and no segment is cut. A backward completes the runs in the order returned.
/// Parameters counted twice in the list (tied, a module called twice) count once.
std::vector<std::vector<ir::CallId>>
cut_buckets(const ir::ModelSpec& model, const std::vector<ir::CallId>& calls, double bucket_mb);

} // namespace piper::compiler
