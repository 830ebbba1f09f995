#include "tools/bench/costs.h"

#include "transport/loopback/fabric.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <thread>

namespace piper::cli {

namespace {

using Rows = std::vector<transport::BenchRow>;

Result<Rows> measure_loopback() {
  constexpr ir::DeviceIndex kDevices[] = {0, 1};
  constexpr size_t kSizes[] = {8};
  transport::LoopbackFabric fabric(kDevices);
  std::optional<Result<Rows>> other;
  std::thread second([&] {
    other = transport::run_transport_bench_rank(fabric.endpoint(1), kSizes, kTimePerLinkRow);
  });
  auto rows = transport::run_transport_bench_rank(fabric.endpoint(0), kSizes, kTimePerLinkRow);
  second.join();
  return rows;
}

/// Of the smallest message.
double latency_of(const Rows& rows) {
  const transport::BenchRow* smallest = nullptr;
  for (const auto& row : rows)
    if (row.op == "ping_pong" && (!smallest || row.bytes < smallest->bytes))
      smallest = &row;
  return smallest ? smallest->median_seconds : 0;
}

compiler::Level level_within(const Rows& rows) {
  compiler::Level level{.name = "process"};
  level.latency = latency_of(rows);
  level.hands_over = true;
  return level;
}

compiler::Level level_between(const Rows& rows) {
  compiler::Level level{.name = "machine"};
  level.latency = latency_of(rows);
  for (const auto& row : rows)
    if (row.op == "stream")
      level.bandwidth =
          std::max(level.bandwidth, static_cast<double>(row.bytes) / row.median_seconds);
  return level;
}

compiler::CostModel to_costs(const executor::Profile& profile, const ir::ModelSpec& model,
                             const executor::OptimizerSpec& optimizer) {
  compiler::CostModel costs;
  costs.forward_chunk = profile.forward_chunk;
  costs.backward_chunk = profile.backward_chunk;
  costs.instruction = profile.instruction;
  costs.iteration = profile.iteration;
  costs.update = profile.update;
  costs.add = profile.add;
  costs.copy = profile.copy;
  costs.moments = 0;
  for (ir::StateKind kind : optimizer.state())
    costs.moments += kind == ir::StateKind::Moment1 || kind == ir::StateKind::Moment2;
  for (size_t c = 0; c < model.calls.size(); ++c) {
    const executor::CallProfile& its = profile.calls[c];
    const auto line = [&](auto figure) {
      std::vector<std::pair<int64_t, double>> samples;
      for (const executor::CallSample& sample : its.samples)
        samples.emplace_back(sample.rows, static_cast<double>(sample.*figure));
      return compiler::fit(samples);
    };
    compiler::CallCost cost;
    cost.forward = line(&executor::CallSample::forward);
    cost.backward = line(&executor::CallSample::backward);
    cost.backward_input = line(&executor::CallSample::backward_input);
    cost.backward_weight = line(&executor::CallSample::backward_weight);
    costs.calls.push_back(std::move(cost));
  }
  return costs;
}

} // namespace

std::vector<int64_t> rows_of(const ir::PlanSet& plans) {
  std::set<int64_t> rows;
  for (size_t g = 0; g < plans.groups.size(); ++g)
    rows.insert(plans.rows(ir::GroupId(g)));
  return {rows.begin(), rows.end()};
}

std::vector<int64_t> rows_to_measure(const ir::ModelSpec& model, const ir::PlanSet& plans) {
  std::set<int64_t> rows;
  for (int64_t its : rows_of(plans))
    rows.insert({std::max<int64_t>(1, its / 2), its, std::min(model.batch, 2 * its)});
  return {rows.begin(), rows.end()};
}

Result<MeasuredCosts> measure_costs(const Model& model, const SessionOptions& session,
                                    std::vector<int64_t> rows, std::chrono::milliseconds time,
                                    const std::optional<Rows>& between,
                                    uint32_t devices_per_process) {
  for (int64_t each : rows)
    if (each > model.spec->batch)
      return user_error(
          fmt::format("{} rows are more than the {} of the batch", each, model.spec->batch),
          "--rows");
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  executor::ProfileOptions options;
  options.rows = std::move(rows);
  options.threads = session.threads_per_device;
  options.devices =
      std::clamp(static_cast<int>(session.devices), 1, std::max(1, cores / options.threads));
  options.seed = session.seed;
  options.optimizer = session.optimizer;
  options.time = time;
  MeasuredCosts measured;
  PIPER_TRY(measured.profile, executor::profile_model(model, options));
  measured.costs = to_costs(measured.profile, *model.spec, session.optimizer);
  measured.costs.source =
      fmt::format("measured with {} rows, {} threads a device, {} devices side by side",
                  fmt::join(options.rows, ", "), options.threads, options.devices);
  PIPER_TRY(const Rows within, measure_loopback());
  measured.cluster.levels = {level_within(within)};
  if (between) {
    measured.cluster.levels[0].devices = devices_per_process;
    measured.cluster.levels.push_back(level_between(*between));
  }
  measured.cluster.levels.back().cores = static_cast<double>(cores) / options.threads;
  return measured;
}

} // namespace piper::cli
