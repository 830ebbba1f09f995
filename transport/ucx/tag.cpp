#include "transport/ucx/tag.h"

#include "transport/errors.h"

#include <fmt/format.h>

namespace piper::transport {

Result<uint64_t> make_tag(TagKind kind, const Key& key, DeviceIndex sender, uint64_t place) {
  auto error = [&](const char* part, int64_t value, uint64_t limit) {
    return internal_error(fmt::format("the key ({}) does not fit a UCX tag: {} {} is above {}",
                                      to_string(key), part, value, limit),
                          fmt::format("device {}", sender));
  };
  if (key.edge > kTagMaxEdge)
    return error("edge", key.edge, kTagMaxEdge);
  if (key.microbatch < ir::kNoMicrobatch || key.microbatch > kTagMaxMicrobatch)
    return error("microbatch", key.microbatch, kTagMaxMicrobatch);
  if (sender > kTagMaxDevice)
    return error("device", sender, kTagMaxDevice);
  if (place >= kTagMaxPlaces)
    return error("place", static_cast<int64_t>(place), kTagMaxPlaces - 1);
  return (key.epoch % kTagEpochs) << 54 | static_cast<uint64_t>(kind) << 52 |
         uint64_t{key.edge} << 32 | static_cast<uint64_t>(key.microbatch + 1) << 20 |
         uint64_t{sender} << 6 | place;
}

std::vector<TagPattern> stale_tags(ir::Epoch oldest, uint64_t place) {
  // The range of epochs falls into aligned blocks, as address ranges do into prefixes.
  std::vector<TagPattern> patterns;
  uint64_t first = (oldest + kTagEpochs / 2) % kTagEpochs; // = oldest - 512
  for (uint64_t left = kTagEpochs / 2; left > 0;) {
    uint64_t block = 1;
    while (first % (2 * block) == 0 && 2 * block <= left)
      block *= 2;
    const uint64_t epoch_mask = (kTagEpochs - 1) & ~(block - 1);
    patterns.push_back({first << 54 | place, epoch_mask << 54 | (kTagMaxPlaces - 1)});
    first = (first + block) % kTagEpochs;
    left -= block;
  }
  return patterns;
}

} // namespace piper::transport
