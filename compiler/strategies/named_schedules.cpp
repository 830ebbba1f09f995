#include "compiler/strategies/named_schedules.h"

#include "compiler/strategies/schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace piper::compiler {

namespace {

struct Named {
  const char* name;
  Result<ScheduleTable> (*build)(const ScheduleShape& shape);
  int chunks = 1;  ///< stages of a rank; with the option v, if it is not given
  int least_v = 0; ///< 0: no option v
  int step_v = 1;  ///< what v is a multiple of
};

template <ScheduleTable (*Build)(const ScheduleShape&)>
Result<ScheduleTable> always(const ScheduleShape& shape) {
  return Build(shape);
}

constexpr std::array kSchedules = {
    Named{"gpipe", always<gpipe>},
    Named{"1f1b", always<one_f_one_b>},
    Named{"interleaved", always<interleaved>, 2, 2},
    Named{"loopedbfs", always<looped_bfs>, 2, 2},
    Named{"zbh1", always<zb_h1>},
    Named{"zbh2", always<zb_h2>},
    Named{"zb1p", always<zb1p>, 2, 1},
    Named{"zbv", always<zbv>, 2},
    Named{"vhalf", always<v_half>, 2},
    Named{"vmin", always<v_min>, 2},
    Named{"dualpipe", dual_pipe, 2},
    Named{"dualpipev", always<dual_pipe_v>, 2},
    Named{"wave", always<wave>, 4, 2, 2},
};

const Named* find(const std::string& name) {
  const auto at = std::find_if(kSchedules.begin(), kSchedules.end(),
                               [&](const Named& each) { return name == each.name; });
  return at == kSchedules.end() ? nullptr : &*at;
}

} // namespace

bool is_schedule(const std::string& name) {
  return find(name) != nullptr;
}

std::string schedule_names() {
  std::string names;
  for (const Named& each : kSchedules)
    names += fmt::format("{}{}:P", names.empty() ? "" : ", ", each.name);
  return names;
}

Result<ScheduleTable> named_schedule(const std::string& name, int ranks, int64_t microbatches,
                                     const std::map<std::string, int>& options) {
  const Named* schedule = find(name);
  if (!schedule)
    return user_error(fmt::format("unknown schedule '{}'", name), "", "known: " + schedule_names());
  ScheduleShape shape{ranks, microbatches, schedule->chunks};
  for (const auto& [option, value] : options) {
    if (option != "v" || schedule->least_v == 0)
      return user_error(
          fmt::format("{} has no option '{}'", name, option), "",
          schedule->least_v > 0
              ? fmt::format("its option is v, stages of a rank ({})", schedule->chunks)
              : fmt::format("it has no options: a rank has {} stage{}", schedule->chunks,
                            schedule->chunks == 1 ? "" : "s"));
    if (value < schedule->least_v)
      return user_error(fmt::format("v={} is too few stages of a rank for {}", value, name), "",
                        fmt::format("use {} or more", schedule->least_v));
    if (value % schedule->step_v != 0)
      return user_error(fmt::format("v={} is no number of stages of a rank for {}", value, name),
                        "", fmt::format("use a multiple of {}", schedule->step_v));
    shape.chunks = value;
  }
  return schedule->build(shape);
}

} // namespace piper::compiler
