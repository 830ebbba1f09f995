// A slow link as figures, and the clock of a port that keeps to them.
#pragma once

#include "transport/transport.h"

#include <string_view>

namespace piper::transport {

struct Link {
  std::chrono::nanoseconds latency{0};
  double bandwidth = 0; ///< bytes per second; 0: unlimited

  bool unlimited() const { return latency.count() == 0 && bandwidth == 0; }
  bool operator==(const Link&) const = default;
};

/// "50us,1GB/s": a time in ns, us, ms or s and a rate in B/s, KB/s, MB/s or GB/s (powers of 1000).
/// A User error quotes what cannot be read.
Result<Link> parse_link(std::string_view text);

/// The way out of one device: what is sent goes one after the other. Pure, so that a test can give
/// it any time.
class Port {
public:
  explicit Port(Link link) : link_(link) {}
  /// When `bytes` handed over at `now` have all arrived, if they cross the link in so many steps,
  /// each waiting for the one before. The bytes take the port from when it is free.
  Deadline reserve(Deadline now, uint64_t bytes, int crossings = 1);

private:
  const Link link_;
  Deadline free_at_{};
};

} // namespace piper::transport
