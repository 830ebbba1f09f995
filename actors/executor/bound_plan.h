// BoundPlan: a plan with its slots, modules, peers and buckets resolved to pointers, ready to be
// issued again and again.
#pragma once

#include "actors/executor/device.h"
#include "actors/executor/instructions.h"
#include "actors/executor/state.h"
#include "actors/executor/stream.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace piper::executor {

struct BoundPlan {
  /// A stream as this plan uses it.
  struct BoundStream {
    std::shared_ptr<Stream> stream;
    bool compute = false;     ///< runs kernels; its times are reported
    size_t operations = 0;    ///< issued in an iteration
    Clock::duration waited{}; ///< for the transport; its stream's while it runs
    std::atomic<const BoundInstruction*> current{nullptr};
  };
  /// A call to a stream, in issue order.
  struct Operation {
    enum class Kind : uint8_t { Wait, Run, Record } kind = Kind::Run;
    Stream* stream = nullptr;
    BoundInstruction* task = nullptr;
    Event* event = nullptr;
  };

  std::shared_ptr<const ir::PlanSet> plans;           ///< the plan is one of them
  std::shared_ptr<EpochState> state;                  ///< what it trains; null if it has no buckets
  std::shared_ptr<EpochState> previous;               ///< of a migration: where state comes from
  std::vector<std::shared_ptr<PlacedModule>> modules; ///< that it calls
  std::vector<std::unique_ptr<BoundStream>> streams;
  std::vector<at::Tensor> slots;                          ///< by SlotId
  std::map<ir::Team, std::vector<ir::DeviceIndex>> teams; ///< of its collectives
  std::vector<ChunkContext> contexts; ///< by SlotId; those of Saved and Deferred slots are used,
                                      ///< of what is moved to another memory the first
  std::vector<std::unique_ptr<Event>> events;
  std::vector<std::unique_ptr<BoundInstruction>> instructions;
  std::vector<Operation> program;
  size_t loss_count = 0; ///< microbatches, if the loss is computed here

  /// Appends to the program: wait for `waits`, run, record `records` (null: nothing).
  void append(std::unique_ptr<BoundInstruction> instruction, BoundStream& stream,
              const std::vector<Event*>& waits, Event* records);
  /// Drops every tensor of an iteration that did not end well.
  void drop_tensors();
};

/// What the binder needs of its device.
struct BindContext {
  const DeviceOptions& options;
  const Model& model;
  RunState& run;
  MemoryAccount& account;
  OffloadPool& pool;
  StreamBackend& backend;
  std::function<std::shared_ptr<Stream>(const std::string& name, bool compute)> stream;
  std::function<std::shared_ptr<EpochState>(ir::Epoch)> state; ///< null if there is none
  std::function<Result<std::shared_ptr<PlacedModule>>(uint32_t index, Piece piece)> module;
};

/// Binds the plan that the device has in `plans`, which must give it a role. Errors are Internal
/// where the plan asks for what this device doesn't have, or the model's.
Result<std::shared_ptr<BoundPlan>> bind_plan(std::shared_ptr<const ir::PlanSet> plans,
                                             const BindContext& context);

} // namespace piper::executor
