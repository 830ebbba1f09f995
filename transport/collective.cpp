#include "transport/collective.h"

#include "transport/errors.h"
#include "transport/sum.h"

#include <algorithm>
#include <fmt/format.h>

namespace piper::transport {

uint64_t Collective::wire_bytes() const {
  const uint64_t n = group.size();
  return (kind == CollectiveKind::AllReduce ? 2 : 1) * (n - 1) * bytes() / n;
}

Result<size_t> Collective::check(DeviceIndex self) const {
  auto error = [&](std::string message) {
    return internal_error(fmt::format("collective ({}): {}", to_string(key), message),
                          fmt::format("device {}", self));
  };
  const auto at = std::find(group.begin(), group.end(), self);
  if (at == group.end())
    return error("the device is not in its group");
  if (std::find(at + 1, group.end(), self) != group.end())
    return error("the device is in its group twice");
  if (kind != CollectiveKind::AllGather && !can_sum(dtype))
    return error(fmt::format("cannot add elements of type {}", ir::to_string(dtype)));
  if (kind != CollectiveKind::AllReduce && count % group.size() != 0)
    return error(fmt::format("{} elements don't divide by {} members", count, group.size()));
  return static_cast<size_t>(at - group.begin());
}

} // namespace piper::transport
