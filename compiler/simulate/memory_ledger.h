// MemoryLedger: the bytes that a device holds as its plan runs, by what they are held for.
#pragma once

#include "ir/memory_layout.h"

#include <array>
#include <cstdint>
#include <vector>

namespace piper::compiler {

enum class Holding : uint8_t {
  Parameters,
  Gradients,
  Optimizer,
  Mirrors,     ///< of other devices' parameters and optimizer, and their gradients
  Whole,       ///< parameters or gradients of sharded buckets, from all ranks, while they are used
  Activations, ///< kept for a backward
  Values,      ///< other slots: inputs, gradients of activations, what waits to be sent
  Transient,   ///< scratch of the pass that runs, beyond what it keeps
};
inline constexpr size_t kHoldings = 8;
const char* to_string(Holding holding); ///< "parameters", …

using HeldBytes = std::array<int64_t, kHoldings>; ///< by Holding

/// What the instructions of one plan take, the same for all devices of the role.
class MemoryLayout {
public:
  /// `moments`: arrays of the optimizer as long as the parameters.
  MemoryLayout(const ir::PlanSet& plans, ir::RoleId role, const ir::ModelSpec& model,
               int64_t moments);

  /// What an Offload takes away, or a Fetch brings back.
  int64_t moved(uint32_t instruction) const;

private:
  friend class MemoryLedger;
  /// Storages that an instruction makes, and whose drops happen with its end, or when what it sends
  /// is received.
  struct Changes {
    std::vector<uint32_t> made, dropped, delivered;
  };
  int64_t sum(const std::vector<uint32_t>& storages) const;

  std::vector<ir::Storage> storages_;
  std::vector<Changes> changes_; ///< by instruction
  HeldBytes state_{};            ///< what buckets take at all times
};

/// Follows one device.
class MemoryLedger {
public:
  explicit MemoryLedger(const MemoryLayout& layout);

  void begin(uint32_t instruction);
  void end(uint32_t instruction);
  void delivered(uint32_t send); ///< its message has been received

  int64_t peak() const { return peak_; }
  const HeldBytes& at_peak() const { return at_peak_; }

private:
  void add(const ir::Storage& storage, int64_t sign);
  void drop(const std::vector<uint32_t>& storages);
  void note_peak();

  const MemoryLayout* layout_;
  std::vector<uint32_t> drops_; ///< by storage, that have happened
  HeldBytes held_;
  int64_t total_ = 0, peak_ = 0;
  HeldBytes at_peak_{};
};

} // namespace piper::compiler
