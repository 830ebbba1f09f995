// The compiler's front door: a model and a strategy in, one plan a role out.
#pragma once

#include "ir/graph.h"
#include "ir/plan.h"
#include "ir/strategy.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace piper::compiler {

struct CompileOptions {
  ir::PlanKind kind = ir::PlanKind::Train; ///< Train or Eval
  ir::Epoch epoch = 0;
  uint32_t devices = 0;       ///< of the job; a directive beyond is refused. 0: as many as named
  bool verify_passes = false; ///< ir::verify after every pass (always done at phase boundaries)
  std::string stop_after;     ///< name of a pass: stop there (Compiled::plans stays empty)
  int64_t memory_cap = 0; ///< bytes; plans with which a device may take more are refused. 0: none
  std::vector<ir::StateKind> optimizer; ///< with a cap: the arrays that the optimizer keeps
  bool measure_bytes = false;           ///< fill in PassStat::bytes
};

struct PassStat {
  std::string name;
  double seconds = 0;
  size_t nodes = 0; ///< in the graph that it left
  size_t bytes = 0; ///< that this graph and the plans take (ir/footprint.h); not what the pass took
                    ///< for a while, which the program's peak has
};

struct Compiled {
  std::shared_ptr<const ir::Strategy> strategy; ///< expanded
  ir::Graph graph;                              ///< after the last pass
  ir::PlanSet plans;
  std::vector<PassStat> passes;
};

/// Pure: equal arguments give byte-identical plans. Errors are the user's (with the directive),
/// OutOfMemory where the cap may be passed or, where a verifier failed, Internal.
Result<Compiled> compile(std::shared_ptr<const ir::ModelSpec> model, const ir::Strategy& strategy,
                         const CompileOptions& options = {});

/// The names of the passes, in order.
std::vector<std::string> pass_names();

/// The plan that moves state from the buckets of `from` to those of `to`: every range that a device
/// needs comes from itself if it has it, else from the nearest rank that does. `kinds` are the
/// arrays that the optimizer keeps (Param always among them). `to.epoch` is the plan's epoch.
Result<ir::PlanSet> compile_migration(const ir::PlanSet& from, const ir::PlanSet& to,
                                      const ir::ModelSpec& model,
                                      const std::vector<ir::StateKind>& kinds);

} // namespace piper::compiler
