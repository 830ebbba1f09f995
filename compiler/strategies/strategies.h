// The named builders. A strategy is a function from a shape to directives; each schedule has a
// file.
#pragma once

#include "ir/model_spec.h"
#include "ir/result.h"
#include "ir/strategy.h"

#include <string>
#include <string_view>
#include <vector>

namespace piper::compiler {

/// What a schedule is built for.
struct PipelineShape {
  const ir::ModelSpec* model = nullptr;
  int stages = 1;
  int replicas = 1;             ///< data parallel, of each stage
  int64_t microbatches = 1;     ///< of a replica
  bool shard_optimizer = false; ///< ZeRO-1 over the replicas
};

/// One step of a stage's schedule: a pass of a microbatch.
struct Step {
  char pass = 'F'; ///< 'F' or 'B'
  int64_t microbatch = 0;
  bool operator==(const Step&) const = default;
};

/// Names joined with `x`: "single", "dp:N", "zero1:N", "gpipe:P", "1f1b:P", "dp:2x1f1b:4". At most
/// one pipeline and one data-parallel part. `microbatches` counts those of the global batch, so
/// each of n replicas runs microbatches / n; 0 chooses. Stage s, replica r runs on device s * n +
/// r.
Result<ir::Strategy> build_strategy(const ir::ModelSpec& model, std::string_view expression,
                                    int64_t microbatches);

/// GPipe (arXiv 1811.06965): all forwards, then all backwards.
std::vector<Step> gpipe_steps(int stages, int stage, int64_t microbatches);
/// 1F1B (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473): after stages - 1 -
/// stage forwards to warm up, one forward and one backward in turn.
std::vector<Step> one_f_one_b_steps(int stages, int stage, int64_t microbatches);

using StepBuilder = std::vector<Step> (*)(int stages, int stage, int64_t microbatches);
/// The directives of a pipeline: calls cut into stages of even cost, a tag `stage`, a place or
/// replicate a stage, its steps as an order, each stage's pass fused into one instruction.
Result<ir::Strategy> pipeline(const PipelineShape& shape, StepBuilder steps);
/// Data parallel over the whole model, or a single device. The backward of the last microbatch is
/// cut where buckets are complete, so that their reductions run beside it.
ir::Strategy data_parallel(const PipelineShape& shape);

/// Cuts the calls, in trace order, into `stages` runs so that the costliest is as cheap as can be.
/// Whole segments where there are enough of them. Source: the linear partition problem, by dynamic
/// programming. A User error if there are fewer calls than stages.
Result<std::vector<std::vector<ir::CallId>>> cut_stages(const ir::ModelSpec& model, int stages);

} // namespace piper::compiler
