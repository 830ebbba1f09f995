// The named builders. A strategy is a function from a shape to directives.
#pragma once

#include "compiler/cost/cost_model.h"
#include "compiler/strategies/schedule_table.h"
#include "ir/model_spec.h"
#include "ir/result.h"
#include "ir/strategy.h"

#include <vector>

namespace piper::compiler {

/// What a strategy is built for.
struct PipelineShape {
  const ir::ModelSpec* model = nullptr;
  int replicas = 1;         ///< data parallel, of each stage
  int tensor = 1;           ///< devices that share the rows of a replica, tensor parallel …
  bool sequence = false;    ///< … and sequence parallel
  int experts = 1;          ///< devices in a row that share the experts; a multiple of `tensor`
  int64_t microbatches = 1; ///< of a replica
  /// ZeRO over the replicas (arXiv 1910.02054): what each keeps only its range of. 1: the
  /// optimizer's state; 2: also the gradients; 3: also the parameters.
  int zero = 0;
  int shard_within = 0;             ///< replicas of a sub-group that shares them out; 0: all
  const CostModel* costs = nullptr; ///< by which stages are balanced: see cut_stages

  /// The devices of a rank, each replica's in a row.
  std::vector<ir::DeviceIndex> devices(int rank) const;
  /// Puts what matches on devices: `calls`, the part of the model that the filter is about.
  void place(ir::Strategy& strategy, const ir::Filter& filter, const std::vector<ir::CallId>& calls,
             const std::vector<ir::DeviceIndex>& devices) const;
};

/// Names joined with `x`: "single", "dp:N", "zero1:N" to "zero3:N", "tp:N" or "sp:N" (tensor
/// parallel, without and with sequence parallel), "ep:N" (N devices in a row share the experts: N
/// replicas, or with tp:T N / T of T devices each), a schedule of named_schedules.h with its
/// options
/// ("1f1b:P", "interleaved:P,v=3"), or "table", the schedule that the directive gives as rows of
/// PyTorch's CSV. At most one of each kind: "dp:2x1f1b:4", "tp:2xdp:2x1f1b:2", "dp:2xep:2" (four
/// replicas, in pairs that share the experts), "tp:2xep:4" (two replicas of two devices, all four
/// share the experts). `microbatches` counts those of the global batch, so each of n replicas runs
/// microbatches / n; 0 chooses. Rank r, replica i, its device k of t is device (r * n + i) * t + k.
/// `costs`: see cut_stages.
Result<ir::Strategy> build_strategy(const ir::ModelSpec& model, const ir::Schedule& schedule,
                                    const CostModel* costs = nullptr);

/// The directives of a pipeline: calls cut into stages of even cost, a tag `stage`, a place or
/// replicate a stage (by microbatches where it is on several ranks), its backward split where the
/// table has halves, an order a rank, an overlap a pair, each stage's pass fused into one
/// instruction. The W of a stage without parameters is left out. Errors: those of the table's
/// `check`, and too few calls.
Result<ir::Strategy> pipeline(const PipelineShape& shape, const ScheduleTable& table);
/// The table behind the orders of an expanded strategy, one a rank: the inverse of `pipeline`. A
/// User error if they name anything but passes of microbatches through stages.
Result<ScheduleTable> schedule_of(const ir::Strategy& expanded);
/// Data parallel over the whole model, or a single device. The backward of the last microbatch is
/// cut where buckets are complete, so that their reductions run beside it; with sharded gradients
/// or parameters, every pass is cut at every bucket.
ir::Strategy data_parallel(const PipelineShape& shape);

/// Cuts the calls, in trace order, into `stages` runs so that the costliest is as cheap as can be.
/// A call costs its seconds, forward and backward, by `costs` (measured or declared; not null: of
/// this model) for microbatches of `rows` rows; else its declared FLOPs. Whole segments where there
/// are enough of them. Source: the linear partition problem, by dynamic programming. A User error
/// if there are fewer calls than stages.
Result<std::vector<std::vector<ir::CallId>>> cut_stages(const ir::ModelSpec& model, int stages,
                                                        const CostModel* costs = nullptr,
                                                        int64_t rows = 1);

} // namespace piper::compiler
