#include "tools/piper/report.h"

#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace piper::cli {

namespace {

constexpr int64_t kAround = 3; ///< iterations shown before and after a change

/// Busy and idle seconds of all devices so far.
std::pair<double, double> device_seconds(const Metrics& metrics) {
  double busy = 0, idle = 0;
  for (const auto& device : metrics.devices) {
    busy += device.busy_seconds;
    idle += device.idle_seconds;
  }
  return {busy, idle};
}

} // namespace

double bubble(double busy_seconds, double idle_seconds) {
  const double total = busy_seconds + idle_seconds;
  return total > 0 ? idle_seconds / total : 0;
}

std::string Report::to_json() const {
  using nlohmann::json;
  const Metrics metrics = ends_.empty() ? Metrics{} : ends_.back();
  json out = {
      {"iterations", json::array()}, {"changes", json::array()}, {"devices", json::array()}};
  for (const auto& step : steps_) {
    out["iterations"].push_back({{"iteration", step.iteration},
                                 {"loss", step.loss},
                                 {"tokens_per_second", step.tokens_per_second},
                                 {"seconds", step.seconds},
                                 {"epoch", step.epoch}});
    if (step.eval_loss)
      out["iterations"].back()["eval_loss"] = *step.eval_loss;
  }
  for (const auto& change : metrics.changes)
    out["changes"].push_back({{"from", change.from},
                              {"to", change.to},
                              {"epoch", change.epoch},
                              {"iteration", change.iteration},
                              {"compile_seconds", change.compile_seconds},
                              {"prepare_seconds", change.prepare_seconds},
                              {"pause_seconds", change.pause_seconds},
                              {"bytes_moved", change.bytes_moved}});
  for (const auto& device : metrics.devices)
    out["devices"].push_back({{"device", device.device},
                              {"process", device.process},
                              {"peak_bytes", device.peak_bytes},
                              {"offloaded_bytes", device.offloaded_bytes},
                              {"busy_seconds", device.busy_seconds},
                              {"idle_seconds", device.idle_seconds},
                              {"bytes_sent", device.bytes_sent}});
  if (!digest_.empty())
    out["parameters_digest"] = digest_;
  if (error_)
    out["error"] = *error_;
  return out.dump(1);
}

Result<void> Report::write(const std::string& path) const {
  std::ofstream file(path);
  file << to_json() << "\n";
  file.close();
  if (!file)
    return user_error(fmt::format("cannot write the report to {}", path), "--report");
  return {};
}

std::string Report::to_table() const {
  if (ends_.empty() || steps_.empty())
    return {};
  const Metrics& last = ends_.back();
  Table strategies({"strategy", "iterations", "first loss", "last loss", "tokens/s", "bubble"});
  auto begin = steps_.begin();
  double busy_before = 0, idle_before = 0;
  for (const Metrics& end_of_epoch : ends_) {
    const auto end = std::find_if(
        begin, steps_.end(), [&](const StepResult& step) { return step.epoch != begin->epoch; });
    if (begin == end)
      break;
    std::vector<double> speeds;
    for (auto step = begin; step != end; ++step)
      speeds.push_back(step->tokens_per_second);
    // A change names the strategy that it replaced; the last one was replaced by nothing.
    const auto replaced =
        std::find_if(last.changes.begin(), last.changes.end(),
                     [&](const Change& change) { return change.epoch > begin->epoch; });
    const auto [busy, idle] = device_seconds(end_of_epoch);
    strategies.row({replaced == last.changes.end() ? last.strategy : replaced->from,
                    fmt::format("{}-{}", begin->iteration, (end - 1)->iteration),
                    fmt::format("{:.5f}", begin->loss), fmt::format("{:.5f}", (end - 1)->loss),
                    fmt::format("{:.0f}", median(speeds)),
                    fmt::format("{:.1f}%", 100 * bubble(busy - busy_before, idle - idle_before))});
    begin = end;
    busy_before = busy;
    idle_before = idle;
  }
  std::string text = strategies.to_string();
  if (last.changes.empty())
    return text;

  Table changes({"change", "at iteration", "compiled in", "prepared in", "pause", "bytes moved"});
  Table losses({"iteration", "loss", "tokens/s", "epoch"});
  for (const auto& change : last.changes) {
    changes.row({fmt::format("{} -> {}", change.from, change.to), std::to_string(change.iteration),
                 fmt::format("{:.1f} ms", change.compile_seconds * 1e3),
                 fmt::format("{:.1f} ms", change.prepare_seconds * 1e3),
                 fmt::format("{:.1f} ms", change.pause_seconds * 1e3),
                 human_bytes(static_cast<double>(change.bytes_moved))});
    for (const auto& step : steps_)
      if (step.iteration >= change.iteration - kAround &&
          step.iteration < change.iteration + kAround)
        losses.row({std::to_string(step.iteration), fmt::format("{:.6f}", step.loss),
                    fmt::format("{:.0f}", step.tokens_per_second), std::to_string(step.epoch)});
  }
  return text + "\n" + changes.to_string() + "\n" + losses.to_string();
}

} // namespace piper::cli
