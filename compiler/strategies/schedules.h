// The published pipeline schedules, a file each. A schedule is a function from a shape to a table.
#pragma once

#include "compiler/strategies/schedule_table.h"

namespace piper::compiler {

/// What a schedule is asked for. Stage s runs on rank s % ranks where a rank has several
/// ("looped"), or down the ranks and up again ("V"), as each schedule says.
struct ScheduleShape {
  int ranks = 1;
  int64_t microbatches = 1;
  int chunks = 1; ///< stages of a rank
};

/// GPipe (arXiv 1811.06965): all forwards, then all backwards. Idle (p-1)(F+B), keeps m.
ScheduleTable gpipe(const ScheduleShape& shape);

/// 1F1B (PipeDream-Flush, arXiv 2006.09503; Megatron-LM, arXiv 2104.04473): after p-1-rank forwards
/// one forward and one backward in turn. Idle (p-1)(F+B), keeps p-rank.
ScheduleTable one_f_one_b(const ScheduleShape& shape);

/// Interleaved 1F1B (Megatron-LM, arXiv 2104.04473): 1F1B over v stages a rank, looped, in rounds
/// of p microbatches. Idle (p-1)(F+B)/v, keeps p + (p-1)/v.
ScheduleTable interleaved(const ScheduleShape& shape);

/// Looped BFS (breadth-first pipeline parallelism, arXiv 2211.05953): all microbatches through one
/// stage of a rank before the next. Idle (p-1)(F+B)/v, keeps m.
ScheduleTable looped_bfs(const ScheduleShape& shape);

/// ZB-H1 (zero bubble, arXiv 2401.10241): 1F1B with the backward in halves; W fills the gaps in the
/// memory of 1F1B. Idle (p-1)(F+I-W), keeps p.
ScheduleTable zb_h1(const ScheduleShape& shape);

/// ZB-H2 (zero bubble, arXiv 2401.10241): twice the forwards to warm up, so that no gap is left
/// from a rank's first pass to its last. Gaps (p-1)(F+I-2W), keeps 2p-1.
ScheduleTable zb_h2(const ScheduleShape& shape);

/// ZB1P (zero bubble, arXiv 2401.10241) over v stages a rank, looped: interleaved, with the
/// backward in halves. Idle (p-1)(F+I-W)/v, keeps p.
ScheduleTable zb1p(const ScheduleShape& shape);

/// ZBV (zero bubble, arXiv 2401.10241, section 6): two stages a rank in a V, so that a microbatch's
/// last stage is where its first is. No gaps if F=I=W and m >= 2p-1, keeps p.
ScheduleTable zbv(const ScheduleShape& shape);

/// V-half (controllable memory, arXiv 2405.15362): half of 1F1B's idle time, half of its memory
/// (and one microbatch).
ScheduleTable v_half(const ScheduleShape& shape);

/// V-min (controllable memory, arXiv 2405.15362): two thirds of 1F1B's idle time, a third of its
/// memory (and up to 4/3 microbatches).
ScheduleTable v_min(const ScheduleShape& shape);

/// DualPipe (DeepSeek-V3, arXiv 2412.19437): the first half of the microbatches goes down the
/// ranks, the second half up; each stage is on two ranks, each with a copy of its parameters. A
/// forward of one direction runs beside a backward of the other. Idle (p/2-1)(F&B+B-3W) if m >= 2p,
/// keeps p+1. A User error if p is odd.
Result<ScheduleTable> dual_pipe(const ScheduleShape& shape);

/// DualPipeV (the DualPipe repository of DeepSeek, after arXiv 2412.19437): DualPipe cut in half
/// and folded into a V, one copy of the parameters. Idle (p-1)(F&B+B-3W) in times of its stages,
/// which are half as large, if m >= 2p; keeps p + 1/2.
ScheduleTable dual_pipe_v(const ScheduleShape& shape);

/// Zero-bubble waves, which no paper has: v stages a rank, v even, zig-zag over the ranks as in
/// Hanayo (arXiv 2308.15762), with the backward in halves as in zero bubble (arXiv 2401.10241). In
/// unit times a rank runs the oldest I that can run, else the deepest F, else a W. One V (v = 2) is
/// ZBV. Idle (p-1)F/v if F=I=W, v >= 4 and m >= 2p: no longer than the last rank waits for its
/// first microbatch. Keeps p.
ScheduleTable wave(const ScheduleShape& shape);

} // namespace piper::compiler
