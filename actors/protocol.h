// What the parts of a session say to each other: plain data, the same within a process and between
// two. Everything that belongs to an epoch names it, so that a late message can be told.
#pragma once

#include "ir/fingerprint.h"
#include "ir/ids.h"
#include "ir/result.h"
#include "ir/strategy.h"
#include "ir/timeline.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace piper::actors {

using ir::DeviceIndex;
using ir::Epoch;

/// Names one call of the façade, so that its answer finds it.
using RequestId = uint64_t;

/// A strategy as text, with where each directive was written: errors keep their file and line.
struct StrategyText {
  std::string name, json;
  std::vector<std::string> files;
  std::vector<int32_t> lines;

  static StrategyText of(const ir::Strategy& strategy);
  Result<ir::Strategy> parse() const;
  bool operator==(const StrategyText&) const = default;
};

/// A piece of a plan's text, addressed by its content.
struct PlanFragment {
  ir::Fingerprint id;
  std::string text;
  bool operator==(const PlanFragment&) const = default;
};
/// The fragments of one plan set, in order.
using Manifest = std::vector<ir::Fingerprint>;

/// To a device: get ready for an epoch.
struct PrepareRequest {
  Epoch epoch = 0;
  std::vector<Manifest> plans;         ///< of the device's training, evaluation and migration plan
  std::vector<PlanFragment> fragments; ///< those that the device does not have yet
};
/// From a device.
struct PrepareReport {
  DeviceIndex device = 0;
  Epoch epoch = 0;
  bool ok = true;
  Error error;
};

/// What a device does one after the other, in the order in which it is told to.
enum class OpKind : uint8_t {
  Initialize, ///< initial weights into the buckets of `epoch`
  Run,        ///< training iteration `iteration`
  Evaluate,   ///< held-out batch `iteration`
  Migrate,    ///< state into the buckets of `epoch`
  Commit,     ///< `epoch` is the one to run
  Recover,    ///< after an abort
  Hashes,     ///< of the parameters held
  Timeline,   ///< of the last iteration under `epoch`
  Gather,     ///< each parameter from its owner to device 0; `epoch` is a fresh one, for the keys
};
const char* to_string(OpKind kind);

struct Op {
  uint64_t seq = 0; ///< numbers the operations of a session
  OpKind kind = OpKind::Run;
  Epoch epoch = 0;
  int64_t iteration = 0;
  std::vector<std::pair<uint32_t, DeviceIndex>> owners; ///< of Gather: parameter, who sends it
};

struct OpReport {
  DeviceIndex device = 0;
  uint64_t seq = 0;
  Epoch epoch = 0;
  bool ok = true;
  Error error;
  std::vector<double> losses; ///< of each microbatch; 0 or left out if it is not computed there
  double grad_norm = 0;
  double busy_seconds = 0, idle_seconds = 0;
  uint64_t bytes_sent = 0;                           ///< during the operation
  int64_t peak_bytes = 0;                            ///< so far
  int64_t offloaded_bytes = 0;                       ///< at most so far
  std::vector<std::pair<uint32_t, uint64_t>> hashes; ///< of Hashes: parameter, hash
  ir::Timeline timeline;                             ///< of Timeline
};

/// What the coordinator has to know of a compiled epoch.
struct EpochSummary {
  Epoch epoch = 0;
  std::string strategy;
  double compile_seconds = 0;
  std::map<DeviceIndex, std::string> roles; ///< of each device that takes part
  /// Of each microbatch, the devices that report its loss, by rank.
  std::vector<std::vector<DeviceIndex>> loss_order;
  std::vector<std::pair<uint32_t, DeviceIndex>> owners; ///< of each parameter, its first holder
};

/// From the compiler: an epoch, or why there is none.
struct CompileReport {
  Epoch epoch = 0;
  bool ok = true;
  Error error;
  EpochSummary summary;
  std::vector<std::vector<Manifest>> plans; ///< of each device: see PrepareRequest::plans
  std::vector<PlanFragment> fragments;      ///< all that the manifests name
};

/// Mean over the ranks that report a microbatch, in rank order, then over the microbatches, in
/// order; each a left fold, then one division. `losses[m]` are the reports of microbatch m; one
/// without any does not count.
double combine_losses(const std::vector<std::vector<double>>& losses);

} // namespace piper::actors
