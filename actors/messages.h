// CAF's view of the protocol: how each type is written, and the words between the actors. Private
// to actors/*.cpp.
#pragma once

#include "actors/protocol.h"
#include "actors/roster.h"

#include <caf/all.hpp>

namespace piper {
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, Error& x) {
  return f(caf::meta::type_name("piper.error"), x.kind, x.message, x.where, x.hint);
}
} // namespace piper

namespace piper::ir {
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, Fingerprint& x) {
  return f(caf::meta::type_name("piper.fingerprint"), x.high, x.low);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, TimelineSpan& x) {
  return f(caf::meta::type_name("piper.span"), x.name, x.op, x.microbatch, x.start, x.end);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, TimelineLane& x) {
  return f(caf::meta::type_name("piper.lane"), x.device, x.count, x.stream, x.spans);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, TimelineMessage& x) {
  return f(caf::meta::type_name("piper.message"), x.from, x.to, x.start, x.end);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, Timeline& x) {
  return f(caf::meta::type_name("piper.timeline"), x.origin, x.lanes, x.messages);
}
} // namespace piper::ir

namespace piper::executor {
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, OptimizerSpec& x) {
  return f(caf::meta::type_name("piper.optimizer"), x.kind, x.lr, x.beta1, x.beta2, x.eps,
           x.weight_decay, x.momentum, x.clip_norm, x.warmup, x.decay, x.min_lr);
}
} // namespace piper::executor

namespace piper::actors {

template <class Inspector> typename Inspector::result_type inspect(Inspector& f, StrategyText& x) {
  return f(caf::meta::type_name("piper.strategy"), x.name, x.json, x.files, x.lines);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, PlanFragment& x) {
  return f(caf::meta::type_name("piper.fragment"), x.id, x.text);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, PrepareRequest& x) {
  return f(caf::meta::type_name("piper.prepare"), x.epoch, x.plans, x.fragments);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, PrepareReport& x) {
  return f(caf::meta::type_name("piper.prepared"), x.device, x.epoch, x.ok, x.error);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, Op& x) {
  return f(caf::meta::type_name("piper.op"), x.seq, x.kind, x.epoch, x.iteration, x.owners);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, OpReport& x) {
  return f(caf::meta::type_name("piper.report"), x.device, x.seq, x.epoch, x.ok, x.error, x.losses,
           x.grad_norm, x.busy_seconds, x.idle_seconds, x.bytes_sent, x.peak_bytes,
           x.offloaded_bytes, x.hashes, x.timeline);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, EpochSummary& x) {
  return f(caf::meta::type_name("piper.epoch"), x.epoch, x.strategy, x.compile_seconds, x.roles,
           x.loss_order, x.owners);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, CompileReport& x) {
  return f(caf::meta::type_name("piper.compiled"), x.epoch, x.ok, x.error, x.summary, x.plans,
           x.fragments);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, Hello& x) {
  return f(caf::meta::type_name("piper.hello"), x.version, x.pid, x.model_name, x.model_config);
}
template <class Inspector> typename Inspector::result_type inspect(Inspector& f, Offer& x) {
  return f(caf::meta::type_name("piper.offer"), x.process, x.processes, x.devices, x.model_name,
           x.model_config, x.model, x.transport, x.spin, x.link_latency_ns, x.link_bandwidth,
           x.threads, x.memory_cap, x.offload_directory, x.seed, x.deadline_ms, x.optimizer);
}

// To the coordinator, from the façade.
using start_atom = caf::atom_constant<caf::atom("start")>;       // strategy
using run_atom = caf::atom_constant<caf::atom("run")>;           // request, iterations
using taken_atom = caf::atom_constant<caf::atom("taken")>;       // request, go on
using apply_atom = caf::atom_constant<caf::atom("apply")>;       // request, strategy, at or -1
using evaluate_atom = caf::atom_constant<caf::atom("evaluate")>; // request
using digest_atom = caf::atom_constant<caf::atom("digest")>;     // request
using timeline_atom = caf::atom_constant<caf::atom("timeline")>; // request
using gather_atom = caf::atom_constant<caf::atom("gather")>;     // request
using stop_atom = caf::atom_constant<caf::atom("stop")>;
using shutdown_atom = caf::atom_constant<caf::atom("shutdown")>; // reason
// To the coordinator, from the gate or the façade.
using device_atom = caf::atom_constant<caf::atom("device")>; // index, process, its actor
using lost_atom = caf::atom_constant<caf::atom("lost")>;     // devices, error
// To itself.
using tick_atom = caf::atom_constant<caf::atom("tick")>; // number
// To the compiler.
using compile_atom = caf::atom_constant<caf::atom("compile")>; // epoch, from or -1, strategy
using keep_atom = caf::atom_constant<caf::atom("keep")>;       // epoch: of no use but this one
// To a device (beside PrepareRequest and Op), and to the compiler.
using discard_atom = caf::atom_constant<caf::atom("discard")>; // epoch
using abort_atom = caf::atom_constant<caf::atom("abort")>;     // reason
// Between gate and worker.
using refused_atom = caf::atom_constant<caf::atom("refused")>;   // error
using declined_atom = caf::atom_constant<caf::atom("declined")>; // error
using ready_atom = caf::atom_constant<caf::atom("ready")>;       // transport address
using connect_atom = caf::atom_constant<caf::atom("connect")>;   // addresses, coordinator
using goodbye_atom = caf::atom_constant<caf::atom("goodbye")>;   // whether all is well, or why not
using bye_atom = caf::atom_constant<caf::atom("bye")>;

/// One actor system per session or worker: few threads, no output, and no files.
class SystemConfig : public caf::actor_system_config {
public:
  explicit SystemConfig(bool network);
};

} // namespace piper::actors
