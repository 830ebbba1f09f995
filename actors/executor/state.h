// EpochState: the flat buckets of one epoch on one device, and the modules whose parameters are
// views of them.
#pragma once

#include "actors/executor/device.h"
#include "actors/executor/offload_pool.h"
#include "compiler/frontend/memory.h"
#include "compiler/frontend/saved_tensors.h"

#include <map>
#include <span>

namespace piper::executor {

/// A contiguous run of elements in a bucket's array.
struct FlatRange {
  char* data = nullptr;
  int64_t count = 0;
  ir::DType dtype = ir::DType::F32;
  int64_t bytes() const { return count * ir::size_of(dtype); }
};

/// The arrays of a bucket on one device. Undefined where the device isn't in the bucket's group or
/// the optimizer doesn't keep them.
///
/// A sharded array has memory for the whole only in its windows; between them its storage is empty,
/// so that the views of it (the modules' parameters, what autograd saved) stay valid for the next.
///
/// A mirror keeps the owned range of every array, as if all were sharded, and has no windows.
struct BucketState {
  const ir::Bucket* spec = nullptr; ///< null: not on this device
  bool mirror = false;
  ir::Team team;                      ///< the sub-group, each of whose members owns a shard
  int64_t replica = 0, replicas = 1;  ///< among those who own the same shard
  uint32_t part = 0, parts = 1;       ///< of its parameters, where these are cut
  bool counts = true;                 ///< in a global norm; false where others have the same
  at::Tensor param, grad;             ///< numel elements
  at::Tensor param_shard, grad_shard; ///< those of the own shard, where the array is sharded
  at::Tensor moment1, moment2;        ///< those of the own shard
  at::Tensor step;                    ///< one double: updates so far
  int64_t owned_begin = 0;            ///< its shard, which this device updates
  int64_t owned_count = 0;

  /// What is kept: the whole array, or the owned range of a sharded one.
  const at::Tensor& kept(ir::StateKind kind) const;
  bool is_sharded(ir::StateKind kind) const {
    return mirror ? kind != ir::StateKind::Step : ir::is_sharded(*spec, kind);
  }
  FlatRange shard(ir::StateKind kind) const; ///< the own shard of what is kept
  /// A replica's piece of its shard: each element is in the slice of one copy.
  FlatRange slice(ir::StateKind kind) const;
  FlatRange range(ir::StateKind kind) const { return flat(kept(kind)); } ///< of what is kept
  /// Of a sharded array between `open` and `close`; else what is kept.
  FlatRange whole(ir::StateKind kind) const;
  /// Param or Grad, sharded: memory for the whole array, with unspecified contents, charged to
  /// `holder`. May throw c10::OutOfMemoryError.
  void open(ir::StateKind kind, Holder& holder);
  void close(ir::StateKind kind) noexcept;

private:
  FlatRange flat(const at::Tensor& tensor) const;
};

class EpochState;

/// A module that this device has built; shared by the plans of all epochs that use it.
struct PlacedModule {
  struct Param {
    at::Tensor tensor; ///< the module's own; its data is a view of a bucket
    ir::ParamId id;
  };
  uint32_t index = 0; ///< into Model::modules
  Piece piece;        ///< which piece of it
  BuiltModule built;
  std::vector<Param> params;
  const EpochState* home = nullptr; ///< whose buckets the parameters are in
};

class EpochState {
public:
  /// Nothing but initial weights and zeros has been written to it.
  bool pristine = true;
  /// Some updates of an iteration that was not kept have been made, others not.
  bool torn = false;

  /// Allocates the buckets that `device` holds, all zero; what is offloaded, in `pool`. May throw
  /// c10::OutOfMemoryError.
  static Result<std::shared_ptr<EpochState>> make(std::shared_ptr<const ir::PlanSet> plans,
                                                  const ir::ModelSpec& model,
                                                  const DeviceOptions& options,
                                                  MemoryAccount& account, OffloadPool& pool);

  const ir::PlanSet& plans() const { return *plans_; }
  std::span<BucketState> buckets() { return buckets_; } ///< by BucketId
  /// The k-th mirror of a bucket, counted from 1; of 0 the bucket itself. Null if it is not here.
  const BucketState* find(ir::BucketId bucket, uint32_t mirror) const;
  /// The range of a bucket's array; an Internal error if this device doesn't keep all of it.
  Result<FlatRange> range(const ir::StateRange& range) const;

  /// Views of a parameter and of its gradient in its bucket, where the dimension along which it may
  /// be cut is outermost; undefined if it isn't held.
  at::Tensor param(ir::ParamId id) const { return places_[id.value].param; }
  at::Tensor grad(ir::ParamId id) const { return places_[id.value].grad; }
  /// Writes a parameter, given whole, into its bucket, or what this rank keeps of it.
  void store(ir::ParamId id, const at::Tensor& whole) const;
  bool is_mirrored(ir::ParamId id) const; ///< here
  /// The same into the mirrors that have some of it.
  void store_mirrored(ir::ParamId id, const at::Tensor& whole) const;
  std::vector<ir::ParamId> params() const; ///< that are held, in order

  /// Makes the module's parameters and gradients views of the buckets.
  void attach(PlacedModule& module) const;
  void clear_grads();
  /// Ends every window that an interrupted iteration left open.
  void close_windows() noexcept;
  void clear_optimizer();

private:
  struct Place {
    ir::BucketId bucket;
    int64_t offset = 0;
    at::Tensor param, grad; ///< views
  };

  std::shared_ptr<const ir::PlanSet> plans_;
  const ir::ModelSpec* model_ = nullptr;
  std::vector<BucketState> buckets_;
  std::map<std::pair<ir::BucketId, uint32_t>, BucketState> mirrors_; ///< that are here
  std::vector<Place> places_; ///< of each parameter of the model
};

/// Builds a piece of module `index`, checks its parameters against the model's, and attaches it to
/// `state`, with its initial weights in the buckets. Throws what the factory throws.
Result<std::shared_ptr<PlacedModule>> place_module(const Model& model, uint32_t index, Piece piece,
                                                   uint64_t seed, const EpochState& state);
/// Adds what the module has beside parameters.
void add_buffers(const PlacedModule& module, FixedStorages& to);
/// Only the initial weights: builds the module and drops it. Throws what the factory throws.
Result<void> fill_initial(const Model& model, uint32_t index, uint64_t seed,
                          const EpochState& state);

/// Initial weights of what is mirrored here: builds the modules that have it and drops them. Throws
/// what factories throw.
Result<void> fill_mirrors(const Model& model, uint64_t seed, const EpochState& state);

at::ScalarType to_scalar_type(ir::DType dtype);
/// "f32[3,4]", as TensorType prints it.
std::string describe(const at::Tensor& tensor);

} // namespace piper::executor
