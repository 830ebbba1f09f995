// Device: one device's state and the interpreter that runs bound plans on it. A plain type: knows
// neither CAF nor strategies. An actor owns one and routes messages to it.
//
// Threads: `prepare` and `discard` may run while `run` does; everything else by one thread at a
// time. `abort` and the read-only figures from anywhere.
#pragma once

#include "compiler/frontend/memory.h"
#include "compiler/frontend/model.h"
#include "ir/plan.h"
#include "ir/timeline.h"
#include "transport/transport.h"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace piper::executor {

/// AdamW (Loshchilov & Hutter, arXiv 1711.05101) or SGD with momentum; weight decay is decoupled
/// for AdamW and added to the gradient for SGD, as in PyTorch.
struct OptimizerSpec {
  enum class Kind { AdamW, Sgd } kind = Kind::AdamW;
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0;  ///< SGD
  double clip_norm = 0; ///< global gradient norm is clipped to this; 0: not at all
  /// Learning rate at `iteration`: linear warm-up over `warmup` iterations, then cosine to
  /// `min_lr` at iteration `decay`; constant where both are 0.
  int64_t warmup = 0, decay = 0;
  double min_lr = 0;

  double lr_at(int64_t iteration) const;
  /// The arrays that a bucket needs beside its parameters and gradients.
  std::vector<ir::StateKind> state() const;
};

struct DeviceOptions {
  ir::DeviceIndex index = 0;
  int threads = 1;               ///< intra-op threads of each compute stream
  int64_t memory_cap = 0;        ///< bytes; 0: none
  std::string offload_directory; ///< of the file that stands for another memory; empty: the
                                 ///< system's for temporary files
  uint64_t seed = 1;
  OptimizerSpec optimizer;
  std::chrono::milliseconds deadline{60'000}; ///< of every wait in an iteration
  bool spin = true; ///< spin briefly before a wait blocks; off where devices outnumber cores
};

struct IterationResult {
  int64_t iteration = 0;
  /// Mean loss of each microbatch over this device's rows; 0 or left out where it is not computed
  /// here.
  std::vector<double> losses;
  double grad_norm = 0;    ///< global, before clipping; 0 if clipping is off
  double busy_seconds = 0; ///< the compute streams ran instructions
  double idle_seconds = 0; ///< the compute streams waited, within the iteration
  double seconds = 0;      ///< from the first instruction's start to the last one's end
  uint64_t bytes_sent = 0;
};

class Device {
public:
  /// `endpoint` must outlive the device. Starts no thread before the first `prepare`.
  Device(DeviceOptions options, std::shared_ptr<const Model> model, transport::Endpoint& endpoint);
  ~Device(); ///< waits for a call of the model or the data source that is still running

  /// Binds the plan that this device has in `plans` (training, evaluation or migration): builds
  /// modules that are new here, allocates buckets that are new. Leaves what runs undisturbed; on
  /// an error nothing is kept. A device without a role in `plans` prepares nothing and is ok.
  Result<void> prepare(std::shared_ptr<const ir::PlanSet> plans);
  /// Fills the buckets of the prepared epoch with initial weights and zero moments.
  Result<void> initialize(ir::Epoch epoch);
  /// Runs the prepared migration plan into `epoch`. The old epoch's buckets stay as they were.
  Result<void> migrate(ir::Epoch epoch);
  /// Makes `epoch` the one that `run` and `evaluate` use, and frees what only others held.
  Result<void> commit(ir::Epoch epoch);
  /// Drops what `prepare` and `migrate` made for `epoch`; the committed one is not disturbed.
  void discard(ir::Epoch epoch);

  /// One training iteration. On an error (which names device and instruction) parameters and
  /// moments are as before it, unless the iteration had been committed, and gradients are clear.
  /// Where an update that is fused into its reduction was made before the failure, they are
  /// neither: every later run is refused until `initialize`.
  Result<IterationResult> run(int64_t iteration);
  /// Forward and loss on held-out rows.
  Result<IterationResult> evaluate(int64_t iteration);

  /// Makes a running iteration end soon with `reason`; wakes every wait.
  void abort(Error reason);
  /// After an abort or a failed run, which `run` goes on answering until this: ready to run again.
  /// Messages of the interrupted iteration may still come under its epoch; a job of several devices
  /// goes on under a new one.
  void recover();

  /// A copy of a range of the committed epoch's arrays that this device keeps, for itself or as a
  /// mirror (`range.mirror`; which device mirrors what is in the plans: Bucket::mirrors). Between
  /// iterations. An Internal error if it does not keep it.
  Result<at::Tensor> read(const ir::StateRange& range);
  /// The last iteration whose updates the state has, mirrors included; none before the first, and
  /// where a failure has left only some of an iteration's.
  std::optional<int64_t> updated() const;

  /// What each instruction of the last training iteration under the committed epoch did when.
  /// Between iterations. Without lanes before the first, or where the device has no role.
  ir::Timeline timeline() const;

  // Between iterations, on all devices of the job: ranks that each keep a range of a bucket gather
  // it for this, within the deadline.
  /// A hash of the bytes of each parameter that this device holds in the committed epoch.
  Result<std::vector<std::pair<ir::ParamId, uint64_t>>> parameter_hashes();
  /// A copy of each parameter that this device holds (its storage is the caller's).
  Result<std::vector<std::pair<ir::ParamId, at::Tensor>>> parameters();

  int64_t live_bytes() const;
  int64_t peak_bytes() const;
  int64_t offloaded_peak() const; ///< bytes in the other memory, at most so far
  /// Largest first.
  std::vector<MemoryHolder> holders() const;

private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

} // namespace piper::executor
