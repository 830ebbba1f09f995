// MemoryLedger: the bytes that a device holds as its plan runs, by what they are held for.
#pragma once

#include "compiler/cost/cost_model.h"
#include "ir/plan.h"

#include <array>
#include <cstdint>
#include <map>
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

/// What the values of one plan take, the same for all devices of the role.
class MemoryLayout {
public:
  MemoryLayout(const ir::PlanSet& plans, ir::RoleId role, const ir::ModelSpec& model,
               const CostModel& costs);

  /// What the slot keeps alive. 0 for what is in another memory.
  int64_t bytes(ir::SlotId slot) const;

private:
  friend class MemoryLedger;
  struct Storage {
    int64_t bytes = 0;
    Holding holding = Holding::Values;
  };
  uint32_t storage_of(const ir::ValueRef& ref);
  void lay_out_kept(const ir::Instruction& each);
  int64_t mirror_bytes(const ir::Bucket& bucket) const;
  void lay_out_whole(const ir::Instruction& each, uint32_t index);
  int64_t transient(const ir::Plan& plan, const ir::Instruction& each) const;

  const ir::PlanSet& plans_;
  const ir::ModelSpec& model_;
  const CostModel& costs_;
  std::vector<Storage> storages_;
  std::map<ir::ValueRef, uint32_t> by_value_;
  std::vector<std::vector<uint32_t>> slots_; ///< what each slot keeps alive, by SlotId
  std::vector<int64_t> transient_;           ///< of each instruction
  std::vector<int64_t> opens_, closes_;      ///< whole buckets, of each instruction
  HeldBytes state_{};                        ///< parameters, gradients, optimizer
};

/// Follows one device. A value that several slots keep counts once.
class MemoryLedger {
public:
  explicit MemoryLedger(const MemoryLayout& layout);

  void begin(const ir::Instruction& instruction, uint32_t index); ///< makes its outputs
  void end(const ir::Instruction& instruction, uint32_t index);   ///< frees
  /// A message holds what it carries until it has left.
  void hold(ir::SlotId slot) { acquire(slot); }
  void release(ir::SlotId slot);

  int64_t peak() const { return peak_; }
  const HeldBytes& at_peak() const { return at_peak_; }

private:
  void acquire(ir::SlotId slot);
  void add(Holding holding, int64_t bytes);
  void note_peak();

  const MemoryLayout* layout_;
  std::vector<uint32_t> references_; ///< by storage
  HeldBytes held_;
  int64_t total_ = 0, peak_ = 0;
  HeldBytes at_peak_{};
};

} // namespace piper::compiler
