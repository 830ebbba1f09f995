// Small plan sets as the compiler makes them, in text, so that a test can break one line of them.
#pragma once

#include "ir/plan.h"
#include "tests/ir/generators.h"

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace piper::test {

/// `text` with the one place where `from` stands changed to `to`.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == text.npos || text.find(from, at + 1) != text.npos)
    throw std::logic_error(fmt::format("\"{}\" does not stand in the text exactly once", from));
  return text.replace(at, from.size(), to);
}

/// chain_spec(2) on two devices as a pipeline, two microbatches, GPipe.
inline std::string pipeline_plans() {
  return fmt::format("plans train epoch 3 model {} batch 16 microbatches 2 world g2\n{}",
                     chain_spec(2)->fingerprint().to_string(),
                     R"(group g0 devices 0
group g1 devices 1
group g2 devices 0, 1
bucket layer=0 on g0 f32 numel 16
  param p0 at 0
bucket layer=1 on g1 f32 numel 16
  param p1 at 0
edge 0 "l0 on g1"
edge 1 "d.l0 on g0"
edge 2 "commit on g2"
directive 0 "directive 0 (place), s.json:1"
role r0 g0 groups g0, g2 devices 0
  streams compute, recv
  events 2
  slot s0 v0 @0 on g0 is f32[B,4]
  slot s1 saved.c0 @0 on g0 is f32[]
  slot s2 v1 @0 on g0 is f32[B,4]
  slot s3 v0 @1 on g0 is f32[B,4]
  slot s4 saved.c0 @1 on g0 is f32[]
  slot s5 v1 @1 on g0 is f32[B,4]
  slot s6 d.v1 @0 on g0 is f32[B,4]
  slot s7 d.v1 @1 on g0 is f32[B,4]
  input @0 as g0 -> (s0)
  F [c0] @0 as g0 (s0) -> (s1, s2) free s0 by 0
  send edge 0 @0 as g0 to g1 (s2) free s2
  input @1 as g0 -> (s3)
  F [c0] @1 as g0 (s3) -> (s4, s5) free s3 by 0
  send edge 0 @1 as g0 to g1 (s5) free s5
  recv edge 1 @0 as g0 from g1 -> (s6) stream recv record e0
  recv edge 1 @1 as g0 from g1 -> (s7) stream recv record e1
  B [c0] @0 as g0 (s1, s6) free s1, s6 wait e0 by 0
  B [c0] @1 as g0 (s4, s7) free s4, s7 wait e1 by 0
  commit edge 2 buckets b0 as g2 over g2
  update buckets b0 as g0 over g0
role r1 g1 groups g1, g2 devices 1
  streams compute, recv
  events 2
  slot s0 v1 @0 on g1 is f32[B,4]
  slot s1 v1 @1 on g1 is f32[B,4]
  slot s2 v3 @0 on g1 is f32[B,4]
  slot s3 saved.c1 @0 on g1 is f32[]
  slot s4 saved.c2 @0 on g1 is f32[]
  slot s5 v4 @0 on g1 is f32[]
  slot s6 d.v4 @0 on g1 is f32[]
  slot s7 d.v1 @0 on g1 is f32[B,4]
  slot s8 v3 @1 on g1 is f32[B,4]
  slot s9 saved.c1 @1 on g1 is f32[]
  slot s10 saved.c2 @1 on g1 is f32[]
  slot s11 v4 @1 on g1 is f32[]
  slot s12 d.v4 @1 on g1 is f32[]
  slot s13 d.v1 @1 on g1 is f32[B,4]
  recv edge 0 @0 as g1 from g0 -> (s0) stream recv record e0
  recv edge 0 @1 as g1 from g0 -> (s1) stream recv record e1
  input @0 as g1 -> (s2)
  F [c1 | c2] @0 as g1 (s0, s2) -> (s3, s4, s5) free s0, s2 wait e0
  loss @0 as g1 (s5) free s5
  seed @0 as g1 -> (s6) scale 0.5
  B [c1 | c2] @0 as g1 (s3, s4, s6) -> (s7) free s3, s4, s6
  send edge 1 @0 as g1 to g0 (s7) free s7
  input @1 as g1 -> (s8)
  F [c1 | c2] @1 as g1 (s1, s8) -> (s9, s10, s11) free s1, s8 wait e1
  loss @1 as g1 (s11) free s11
  seed @1 as g1 -> (s12) scale 0.5
  B [c1 | c2] @1 as g1 (s9, s10, s12) -> (s13) free s9, s10, s12
  send edge 1 @1 as g1 to g0 (s13) free s13
  commit edge 2 buckets b1 as g2 over g2
  update buckets b1 as g1 over g1
)");
}

/// chain_spec(1) on two replicas with the optimizer's state sharded; the reduction on a stream of
/// its own.
inline std::string replicated_plans() {
  return fmt::format("plans train epoch 0 model {} batch 16 microbatches 1 world g0\n{}",
                     chain_spec(1)->fingerprint().to_string(),
                     R"(group g0 devices 0, 1 replicated
bucket layer=0 on g0 f32 numel 32 shards 2 shard_optimizer
  param p0 at 0
edge 0 "reduce-scatter layer=0 on g0"
edge 1 "commit on g0"
edge 2 "all-gather layer=0 on g0"
role r0 g0 groups g0 devices 0, 1
  streams compute, reduce
  events 2
  slot s0 v0 @0 on g0 is f32[B,4]
  slot s1 v2 @0 on g0 is f32[B,4]
  slot s2 saved.c0 @0 on g0 is f32[]
  slot s3 v3 @0 on g0 is f32[]
  slot s4 d.v3 @0 on g0 is f32[]
  input @0 as g0 -> (s0)
  input @0 as g0 -> (s1)
  F [c0 c1] @0 as g0 (s0, s1) -> (s2, s3) free s0, s1
  loss @0 as g0 (s3) free s3
  seed @0 as g0 -> (s4) scale 0.5
  B [c0 c1] @0 as g0 (s2, s4) free s2, s4 record e0
  reduce-scatter edge 0 buckets b0 as g0 over g0 stream reduce wait e0 record e1
  commit edge 1 buckets b0 as g0 over g0 wait e1
  update buckets b0 as g0 over g0
  all-gather edge 2 buckets b0 as g0 over g0
)");
}

/// Moves a bucket's halves between two devices and copies within one.
inline std::string migration_plans() {
  return fmt::format("plans migrate epoch 4 model {} batch 16 microbatches 1 world g0\n{}",
                     chain_spec(1)->fingerprint().to_string(),
                     R"(group g0 devices 0, 1 replicated
bucket layer=0 on g0 f32 numel 32
  param p0 at 0
edge 0 "param of layer=0 [0, +16) from device 0 to 1"
edge 1 "param of layer=0 [16, +16) from device 1 to 0"
role r0 "device 0" devices 0
  streams compute, recv
  copy-state source epoch 3 b0 param begin 0 count 16 target epoch 4 b0 param begin 0 count 16
  send-state edge 0 source epoch 3 b0 param begin 0 count 16 target epoch 4 b0 param begin 0 count 16 device 1
  recv-state edge 1 source epoch 3 b0 param begin 16 count 16 target epoch 4 b0 param begin 16 count 16 device 1 stream recv
role r1 "device 1" devices 1
  streams compute, recv
  send-state edge 1 source epoch 3 b0 param begin 16 count 16 target epoch 4 b0 param begin 16 count 16 device 0
  recv-state edge 0 source epoch 3 b0 param begin 0 count 16 target epoch 4 b0 param begin 0 count 16 device 0 stream recv
)");
}

} // namespace piper::test
