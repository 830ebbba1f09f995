// The errors that every backend reports, in one wording.
#pragma once

#include "transport/transport.h"

namespace piper::transport {

/// "epoch 1, edge 7, microbatch 2"
std::string to_string(const Key& key);

Error timeout_error(DeviceIndex self, DeviceIndex peer, const Key& key);
/// A collective that ended before the members in `missing` had joined it.
Error timeout_error(DeviceIndex self, std::span<const DeviceIndex> missing, const Key& key);
/// `why` is what the transport knows: "connection reset", "it closed its transport", …
Error lost_error(DeviceIndex self, DeviceIndex peer, const Key& key, std::string_view why);
Error size_error(DeviceIndex self, DeviceIndex peer, const Key& key, size_t expected,
                 size_t arrived);
Error refused_error(DeviceIndex self, DeviceIndex peer, const Key& key, size_t bytes);
Error stale_error(DeviceIndex self, const Key& key, ir::Epoch oldest);
Error unknown_device_error(DeviceIndex self, DeviceIndex peer);

} // namespace piper::transport
