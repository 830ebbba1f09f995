// Measures a transport between two devices: bandwidth, latency, all-reduce.
#pragma once

#include "transport/transport.h"

#include <string>
#include <vector>

namespace piper::transport {

struct BenchRow {
  std::string op;          ///< "stream", "ping_pong" (one way) or "all_reduce"
  size_t bytes = 0;        ///< of one message
  double best_seconds = 0; ///< of one message
  double median_seconds = 0;
  /// bytes / best_seconds / 1e9
  double gigabytes_per_second() const { return static_cast<double>(bytes) / best_seconds / 1e9; }
};

/// The sizes that the project's goals name: 8 B to 64 MiB.
std::vector<size_t> default_bench_sizes();

/// Runs on devices 0 and 1 at once, with the same sizes (multiples of 4); other devices take no
/// part. Both get rows. `stream` is measured from device 0 to 1, with several messages under way.
Result<std::vector<BenchRow>> run_transport_bench_rank(Endpoint& endpoint,
                                                       std::span<const size_t> sizes,
                                                       std::chrono::milliseconds per_row);

} // namespace piper::transport
