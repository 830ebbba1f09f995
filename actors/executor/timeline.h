// What a bound plan's last run did when.
#pragma once

#include "actors/executor/bound_plan.h"
#include "ir/timeline.h"

namespace piper::executor {

/// A lane for each stream; none if the plan has not run. A receive or collective begins when its
/// stream comes to it, so that its span is the wait for the other side too. Not while it runs.
ir::Timeline timeline_of(const BoundPlan& plan, ir::DeviceIndex device, const ir::ModelSpec& model);

} // namespace piper::executor
