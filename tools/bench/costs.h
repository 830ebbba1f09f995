// What a job's calls and links cost on this machine, as the simulator wants it.
#pragma once

#include "actors/executor/profile.h"
#include "actors/session.h"
#include "compiler/cost/cluster.h"
#include "compiler/cost/cost_model.h"
#include "transport/bench.h"

#include <chrono>
#include <optional>
#include <vector>

namespace piper::cli {

struct MeasuredCosts {
  executor::Profile profile;
  compiler::CostModel costs;
  compiler::Cluster cluster;
};

inline constexpr std::chrono::milliseconds kTimePerLinkRow{150}; ///< for each size of a message

/// Rows of a microbatch in these plans, ascending.
std::vector<int64_t> rows_of(const ir::PlanSet& plans);
/// Rows to measure so that costs are known for these plans and around them: theirs, half and twice
/// as many.
std::vector<int64_t> rows_to_measure(const ir::ModelSpec& model, const ir::PlanSet& plans);

/// Measures calls with each of `rows`, for about `time` each, as many devices side by side as cores
/// allow, and what a message takes within a process. `between`: rows of the transport benchmark
/// between processes, each of which then holds `devices_per_process`.
Result<MeasuredCosts> measure_costs(const Model& model, const SessionOptions& session,
                                    std::vector<int64_t> rows, std::chrono::milliseconds time,
                                    const std::optional<std::vector<transport::BenchRow>>& between,
                                    uint32_t devices_per_process);

} // namespace piper::cli
