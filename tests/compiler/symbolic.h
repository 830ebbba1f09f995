// Runs plan sets on symbols, as the executor runs them on tensors, with streams interleaved
// adversarially. Written against what the executor does, not against the verifier: it looks at
// nothing but slots, keys, events and streams, and finds out what comes of them.
#pragma once

#include "ir/plan.h"
#include "tests/compiler/terms.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace piper::test {

struct SymbolicRun {
  /// Why it didn't end, or what it could not do; empty if it ended.
  std::string failure;
  /// What the iteration came to: "first.weight of device 1, part 0" (where it is sharded, of
  /// whoever keeps it; of cut ones "first.weight, piece 1 of …") -> the term that is there after
  /// it, likewise gradients that are left behind; "sum for first.weight" -> the gradients of the
  /// whole parameter that all devices' updates applied; "loss @1" -> the losses of all devices.
  std::map<std::string, std::vector<uint32_t>> result;
  /// By device, the most bytes that slots, messages on their way from it and windows took at a
  /// time.
  std::map<ir::DeviceIndex, int64_t> peak;
};

/// Of each role: pieces of memory, and which of them each slot keeps alive.
struct SlotMemory {
  std::vector<int64_t> bytes;
  std::vector<std::vector<uint32_t>> kept_by; ///< by SlotId
};
using SlotMemories = std::vector<SlotMemory>;

/// One iteration. The seed chooses the interleaving: which stream gets on, how long an instruction
/// runs (it reads and allocates when it begins, and writes when it ends), and whether sends block
/// until they are received.
SymbolicRun run_symbolically(const ir::PlanSet& plans, const ir::ModelSpec& model, Terms& terms,
                             uint64_t seed, const SlotMemories& memories = {});

} // namespace piper::test
