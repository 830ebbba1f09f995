// Runs a plan set on a cost model and a cluster as discrete events: the same instructions, streams
// and events that the runtime executes. What is modelled, and what is not, is in docs/simulator.md.
#pragma once

#include "compiler/cost/cluster.h"
#include "compiler/cost/cost_model.h"
#include "compiler/simulate/memory_ledger.h"
#include "ir/plan.h"

#include <cstdint>
#include <string>
#include <vector>

namespace piper::compiler {

struct SimulateOptions {
  bool every_device = false; ///< simulate each device, also where others do the same
  bool timeline = true;      ///< keep the spans and transfers
  /// Seconds of each instruction of each device, in the order of PlanSet::devices, in place of what
  /// the costs say; not of receives and collectives. Goes with `every_device`.
  const std::vector<std::vector<double>>* seconds = nullptr;
};

/// Devices that do the same at the same time; the figures are of each of them.
struct DeviceReport {
  ir::DeviceIndex device = 0; ///< the first of them
  uint32_t count = 1;
  ir::RoleId role;
  /// Seconds. Their sum is the iteration's, without the overhead of CostModel::iteration.
  double busy = 0;    ///< some compute stream ran an instruction
  double exposed = 0; ///< none did, and one waited for a message or collective that was under way
  double bubble = 0;  ///< none did otherwise: waiting for other devices' work, or done
  double sent = 0;    ///< bytes, in messages and collectives
  int64_t peak = 0;   ///< bytes
  HeldBytes at_peak{};
};

/// An instruction on its stream. A transfer or collective begins when it is under way.
struct Span {
  uint32_t device = 0; ///< index into Simulation::devices
  uint32_t stream = 0; ///< of the plan
  uint32_t instruction = 0;
  double start = 0, end = 0;
};

/// A message between two of Simulation::devices.
struct Transfer {
  uint32_t from = 0, to = 0;
  uint32_t send = 0, recv = 0; ///< instructions
  double start = 0, end = 0;
};

struct Simulation {
  double makespan = 0;               ///< seconds of an iteration
  std::vector<DeviceReport> devices; ///< by device
  std::vector<Span> spans;           ///< by their ends
  std::vector<Transfer> transfers;   ///< by their ends

  /// Of the device that is idle least (`exposed` and `bubble` together).
  const DeviceReport& busiest() const;
  int64_t peak() const; ///< of the device that holds most
};

/// Simulates one iteration. Without `every_device` one device of each class of devices_classes.h
/// stands for all; the result is the same. An Internal error if the plans hang (verified ones
/// don't), a User error if the cost model is another model's.
Result<Simulation> simulate(const ir::PlanSet& plans, const ir::ModelSpec& model,
                            const CostModel& costs, const Cluster& cluster,
                            const SimulateOptions& options = {});

} // namespace piper::compiler
