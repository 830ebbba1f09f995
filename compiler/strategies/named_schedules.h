// The names under which schedules are asked for: "interleaved:4,v=3".
#pragma once

#include "compiler/strategies/schedule_table.h"

#include <map>
#include <string>

namespace piper::compiler {

/// Whether `name` is that of a schedule.
bool is_schedule(const std::string& name);
/// "gpipe:P, 1f1b:P, …", for errors.
std::string schedule_names();

/// The table of a named schedule on `ranks` ranks. Options: `v`, stages of a rank, where the
/// schedule leaves that open. Errors: an option or a value that the schedule does not have, a
/// number of ranks that it does not run on; each says what would do.
Result<ScheduleTable> named_schedule(const std::string& name, int ranks, int64_t microbatches,
                                     const std::map<std::string, int>& options = {});

} // namespace piper::compiler
