#include "transport/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace piper::transport {
namespace {

std::string where(DeviceIndex self) {
  return fmt::format("device {}", self);
}

} // namespace

std::string to_string(const Key& key) {
  if (key.microbatch == ir::kNoMicrobatch)
    return fmt::format("epoch {}, edge {}", key.epoch, key.edge);
  return fmt::format("epoch {}, edge {}, microbatch {}", key.epoch, key.edge, key.microbatch);
}

Error timeout_error(DeviceIndex self, DeviceIndex peer, const Key& key) {
  return {ErrorKind::Timeout,
          fmt::format("no message from device {} ({}) before the deadline", peer, to_string(key)),
          where(self), "the peer hangs or is slow; a longer deadline helps only if it is slow"};
}

Error timeout_error(DeviceIndex self, std::span<const DeviceIndex> missing, const Key& key) {
  return {ErrorKind::Timeout,
          fmt::format("device {} did not join the collective ({}) before the deadline",
                      fmt::join(missing, ", "), to_string(key)),
          where(self), "the peer hangs or is slow; a longer deadline helps only if it is slow"};
}

Error lost_error(DeviceIndex self, DeviceIndex peer, const Key& key, std::string_view why) {
  return {ErrorKind::DeviceLost,
          fmt::format("device {} is lost ({}): {}", peer, to_string(key), why), where(self), ""};
}

Error size_error(DeviceIndex self, DeviceIndex peer, const Key& key, size_t expected,
                 size_t arrived) {
  return internal_error(fmt::format("expected {} bytes from device {} ({}), but {} arrived",
                                    expected, peer, to_string(key), arrived),
                        where(self));
}

Error refused_error(DeviceIndex self, DeviceIndex peer, const Key& key, size_t bytes) {
  return {ErrorKind::OutOfMemory,
          fmt::format("no memory for {} bytes from device {} ({})", bytes, peer, to_string(key)),
          where(self), ""};
}

Error stale_error(DeviceIndex self, const Key& key, ir::Epoch oldest) {
  return internal_error(
      fmt::format("the operation ({}) is of an epoch that ended: the oldest is {}", to_string(key),
                  oldest),
      where(self));
}

Error unknown_device_error(DeviceIndex self, DeviceIndex peer) {
  return internal_error(fmt::format("device {} is not connected", peer), where(self));
}

} // namespace piper::transport
