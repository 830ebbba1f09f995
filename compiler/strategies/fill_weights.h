// Zero-bubble schedules (arXiv 2401.10241, 2405.15362) as an order of forwards and backwards for
// inputs, which ranks wait for, plus backwards for weights, which nobody does.
#pragma once

#include "compiler/strategies/schedule_table.h"

namespace piper::compiler {

/// Adds the W of every I of an order of F and I. In unit times (F=I=W=1): a rank whose next pass
/// cannot start runs its oldest W, and so does a rank that keeps `limit` microbatches of its stages
/// already before it takes another forward. A limit that the order itself exceeds is raised by as
/// little as it takes.
ScheduleTable fill_weights(const ScheduleTable& order, int limit);

} // namespace piper::compiler
