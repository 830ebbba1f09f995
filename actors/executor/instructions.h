// The opcodes. Each struct is filled by the binder (bound_plan.cpp), which also decides that what
// is here is right: ranges in bounds, types equal, peers members of their groups.
#pragma once

#include "actors/executor/bound_instruction.h"
#include "actors/executor/optimizer.h"
#include "actors/executor/state.h"

#include <span>

namespace piper::executor {

// ---- compute_instructions.cpp

struct InputInstruction final : BoundInstruction {
  const DataSource* data = nullptr;
  BatchRequest request; ///< but for the iteration
  std::vector<int64_t> shape;
  ir::TensorType type;
  at::Tensor* target = nullptr;

protected:
  Result<void> execute() override;
};

struct ForwardInstruction final : BoundInstruction {
  std::vector<ForwardChunk> chunks;
  std::vector<at::Tensor> internals; ///< values that only later chunks read

  void clear() noexcept override;

protected:
  Result<void> execute() override;
};

struct SeedInstruction final : BoundInstruction {
  at::Tensor scale; ///< never written
  at::Tensor* target = nullptr;

protected:
  Result<void> execute() override;
};

/// Moves what chunks keep, and tensors, to another memory or back.
struct OffloadInstruction final : BoundInstruction {
  struct Move {
    const at::Tensor* source;
    at::Tensor* target;
  };
  std::vector<ChunkContext*> contexts;
  std::vector<Move> tensors;
  OffloadPool* pool = nullptr; ///< null: they come back

protected:
  Result<void> execute() override;
};

struct BackwardInstruction final : BoundInstruction {
  std::vector<BackwardChunk> chunks; ///< in forward order
  std::vector<at::Tensor> internals; ///< gradients that only earlier chunks read

  void clear() noexcept override;

protected:
  Result<void> execute() override;
};

struct BackwardWeightInstruction final : BoundInstruction {
  std::vector<ChunkContext*> chunks; ///< what each left for it, in forward order

protected:
  Result<void> execute() override;
};

struct AddInstruction final : BoundInstruction {
  std::vector<at::Tensor*> parts;
  at::Tensor* target = nullptr;

protected:
  Result<void> execute() override;
};

struct LossInstruction final : BoundInstruction {
  const at::Tensor* loss = nullptr;
  size_t microbatch = 0;

protected:
  Result<void> execute() override;
};

// ---- transport_instructions.cpp

/// An instruction that uses the transport.
struct TransportInstruction : BoundInstruction {
  transport::Key key;
  bool on_host() const noexcept final { return true; }

protected:
  Result<void> execute() final; ///< measures what a compute stream waits
  virtual Result<void> transfer() = 0;
};

struct SendInstruction final : TransportInstruction {
  at::Tensor* source = nullptr;
  bool last_use = false; ///< the tensor itself goes
  ir::DeviceIndex to = 0;

protected:
  Result<void> transfer() override;
};

struct RecvInstruction final : TransportInstruction {
  at::Tensor* target = nullptr;
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::kFloat;
  size_t bytes = 0;
  ir::DeviceIndex from = 0;

protected:
  Result<void> transfer() override;
};

// ---- redistribute_instructions.cpp

/// Moves a value between layouts within a block of ranks.
struct RedistributeInstruction : TransportInstruction {
  at::Tensor* source = nullptr;
  at::Tensor* target = nullptr;
  bool last_use = false; ///< of the source
  std::span<const ir::DeviceIndex> block;
  size_t rank = 0; ///< in the block
};

/// Takes this rank's piece of the tokens.
struct SliceTokensInstruction final : RedistributeInstruction {
protected:
  Result<void> transfer() override;
};

/// Sums partial values, whole or in pieces of the tokens, or gathers pieces.
struct SumOrGatherInstruction final : RedistributeInstruction {
  ir::Move move = ir::Move::AllReduce; ///< AllReduce, ReduceScatter or AllGather

protected:
  Result<void> transfer() override;
};

/// Sends rows to the ranks that have their experts, sorted by expert there, or back. Counts say how
/// many rows of each rank (a line) go to each expert; without them it is the counts that move.
struct AllToAllInstruction final : RedistributeInstruction {
  bool to_experts = true;
  size_t sharers = 1; ///< ranks in a row that have the same rows around the experts
  const at::Tensor* sent_counts = nullptr;     ///< as they are where the value comes from
  const at::Tensor* received_counts = nullptr; ///< as they are where it goes

protected:
  Result<void> transfer() override;

private:
  Result<void> move_counts();
  Result<void> move_rows();
};

// ---- transport_instructions.cpp

struct CollectiveInstruction final : TransportInstruction {
  enum class Kind : uint8_t { AllReduce, ReduceScatter, AllGather } kind = Kind::AllReduce;
  std::span<const ir::DeviceIndex> group;
  FlatRange range;

protected:
  Result<void> transfer() override;
};

/// The whole parameters of a sharded bucket.
struct GatherInstruction final : TransportInstruction {
  BucketState* bucket = nullptr;
  Holder* memory = nullptr; ///< is charged
  std::span<const ir::DeviceIndex> group;

  Result<void> transfer() override;
};

/// Sums the gradients of a sharded bucket, adds what this rank owns to what it keeps.
struct ShardGradsInstruction final : TransportInstruction {
  BucketState* bucket = nullptr;
  std::span<const ir::DeviceIndex> group;

protected:
  Result<void> transfer() override;
};

struct CommitInstruction final : TransportInstruction {
  std::span<const ir::DeviceIndex> world;
  double clip_norm = 0;
  std::vector<FlatRange> slices; ///< gradients that this device counts

protected:
  Result<void> transfer() override;
};

// ---- state_instructions.cpp

struct UpdateInstruction final : BoundInstruction {
  const OptimizerSpec* optimizer = nullptr;
  FlatRange grad;                          ///< what is kept of the bucket's
  int64_t owned_begin = 0;                 ///< in it
  FlatRange owned_param, moment1, moment2; ///< of the owned range
  double* step = nullptr;                  ///< null: the optimizer counts no steps

protected:
  Result<void> execute() override;
};

/// Ends a window of a bucket's parameters.
struct ReleaseInstruction final : BoundInstruction {
  BucketState* bucket = nullptr;

protected:
  Result<void> execute() override;
};

/// Begins a window of a bucket's gradients.
struct ZeroGradsInstruction final : BoundInstruction {
  BucketState* bucket = nullptr;
  Holder* memory = nullptr; ///< is charged

protected:
  Result<void> execute() override;
};

struct CopyStateInstruction final : BoundInstruction {
  FlatRange source, target;

protected:
  Result<void> execute() override;
};

struct SendStateInstruction final : TransportInstruction {
  at::Tensor array; ///< that the range is in; kept alive until it has left
  FlatRange source;
  ir::DeviceIndex to = 0;

protected:
  Result<void> transfer() override;
};

struct RecvStateInstruction final : TransportInstruction {
  FlatRange target;
  ir::DeviceIndex from = 0;

protected:
  Result<void> transfer() override;
};

} // namespace piper::executor
