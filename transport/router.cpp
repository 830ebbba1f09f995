#include "transport/router.h"

#include <algorithm>

namespace piper::transport {

RoutedEndpoint::RoutedEndpoint(Endpoint& local, Endpoint& remote,
                               std::span<const DeviceIndex> local_devices)
    : local_(local), remote_(remote), is_local_(local_devices.begin(), local_devices.end()) {}

Endpoint& RoutedEndpoint::of(std::span<const DeviceIndex> group) {
  const bool all_local = std::all_of(group.begin(), group.end(),
                                     [&](DeviceIndex d) { return is_local_.count(d) > 0; });
  return all_local ? local_ : remote_;
}

Result<void> RoutedEndpoint::send(DeviceIndex to, const Key& key, Payload payload) {
  return of(to).send(to, key, std::move(payload));
}

Result<void> RoutedEndpoint::recv(DeviceIndex from, const Key& key, size_t bytes, Sink& sink,
                                  Deadline deadline) {
  return of(from).recv(from, key, bytes, sink, deadline);
}

Result<void> RoutedEndpoint::all_reduce(std::span<const DeviceIndex> group, const Key& key,
                                        void* data, size_t count, ir::DType dtype,
                                        Deadline deadline) {
  return of(group).all_reduce(group, key, data, count, dtype, deadline);
}

Result<void> RoutedEndpoint::reduce_scatter(std::span<const DeviceIndex> group, const Key& key,
                                            void* data, size_t count, ir::DType dtype,
                                            Deadline deadline) {
  return of(group).reduce_scatter(group, key, data, count, dtype, deadline);
}

Result<void> RoutedEndpoint::all_gather(std::span<const DeviceIndex> group, const Key& key,
                                        void* data, size_t count, ir::DType dtype,
                                        Deadline deadline) {
  return of(group).all_gather(group, key, data, count, dtype, deadline);
}

Result<void> RoutedEndpoint::flush(Deadline deadline) {
  PIPER_CHECK_OK(local_.flush(deadline));
  return remote_.flush(deadline);
}

void RoutedEndpoint::abort(Error reason) {
  local_.abort(reason);
  remote_.abort(std::move(reason));
}

void RoutedEndpoint::reset(ir::Epoch oldest) {
  local_.reset(oldest);
  remote_.reset(oldest);
}

} // namespace piper::transport
