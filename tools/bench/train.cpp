#include "tools/bench/train.h"

#include "tools/piper/numbers.h"
#include "tools/piper/processes.h"
#include "tools/piper/table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>

#include <unistd.h>

using namespace std::string_literals;

namespace piper::cli {

namespace {

/// Speed and losses of one run.
struct Measured {
  double tokens_per_second = 0; ///< median of the iterations after the warm-up
  std::vector<double> losses;
  double pipeline_limit = 0; ///< share of the time that a pipeline of such stages takes at least
};

/// A file that is gone at the end of the scope.
class ScratchFile {
public:
  ScratchFile()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("piper-bench-{}-{}.json", getpid(), next()++)) {}
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  std::string path() const { return path_.string(); }
  Result<nlohmann::json> read() const {
    try {
      return nlohmann::json::parse(std::ifstream(path_));
    } catch (const nlohmann::json::exception& error) {
      return Error{ErrorKind::Internal, fmt::format("unreadable: {}", error.what()), path(), ""};
    }
  }

private:
  static std::atomic<int>& next() {
    static std::atomic<int> count;
    return count;
  }
  std::filesystem::path path_;
};

std::vector<std::string> size_flags(const TrainBenchmark& b) {
  return {"--layers",       std::to_string(b.layers),      "--d-model", std::to_string(b.d_model),
          "--heads",        std::to_string(b.heads),       "--seq",     std::to_string(b.seq),
          "--batch",        std::to_string(b.batch),       "--dtype",   b.dtype,
          "--microbatches", std::to_string(b.microbatches)};
}

Result<Measured> run_ours(const TrainBenchmark& b, const std::string& strategy) {
  const ScratchFile report;
  std::vector<std::string> arguments{"train",
                                     "--model",
                                     "gpt",
                                     "--strategy",
                                     strategy,
                                     "--iters",
                                     std::to_string(b.iterations),
                                     "--report",
                                     report.path()};
  // A strategy of one device has nothing to share.
  if (b.processes > 1 && strategy != "single")
    arguments.insert(arguments.end(), {"--processes", std::to_string(b.processes)});
  const auto sizes = size_flags(b);
  arguments.insert(arguments.end(), sizes.begin(), sizes.end());
  arguments.insert(arguments.end(), b.arguments.begin(), b.arguments.end());
  PIPER_CHECK_OK(run_self(arguments));
  PIPER_TRY(const auto json, report.read());
  Measured measured;
  std::vector<double> speeds;
  for (const auto& iteration : json.at("iterations")) {
    measured.losses.push_back(iteration.at("loss"));
    if (iteration.at("iteration") >= b.warmup)
      speeds.push_back(iteration.at("tokens_per_second"));
  }
  measured.tokens_per_second = median(speeds);
  double before = 0, least = 0, taken = 0; // seconds
  for (const auto& device : json.at("devices")) {
    const double busy = device.at("busy_seconds"), idle = device.at("idle_seconds");
    least = std::max(least, busy + before / static_cast<double>(b.microbatches));
    before += busy;
    taken = std::max(taken, busy + idle);
  }
  measured.pipeline_limit = taken > 0 ? least / taken : 0;
  return measured;
}

/// Tokens per second of `count` processes side by side, each with one device.
Result<double> run_independent(const TrainBenchmark& b, int count) {
  std::vector<std::future<Result<Measured>>> runs;
  for (int i = 0; i < count; ++i)
    runs.push_back(std::async(std::launch::async, [&b] { return run_ours(b, "single"); }));
  double sum = 0;
  std::optional<Error> failed;
  for (auto& run : runs) {
    const Result<Measured> one = run.get();
    if (one.ok())
      sum += one->tokens_per_second;
    else
      failed = one.error();
  }
  if (failed)
    return *failed;
  return sum;
}

/// "dp:4" -> {"ddp", 4}
Result<std::pair<std::string, std::string>> peer_strategy(const std::string& strategy) {
  static const std::map<std::string, std::string> kNames = {{"single", "single"},
                                                            {"dp", "ddp"},
                                                            {"zero1", "zero1"},
                                                            {"zero3", "fsdp2"},
                                                            {"gpipe", "gpipe"},
                                                            {"1f1b", "1f1b"},
                                                            {"interleaved", "interleaved1f1b"},
                                                            {"loopedbfs", "loopedbfs"},
                                                            {"zb1p", "interleavedzerobubble"},
                                                            {"zbv", "zbv"},
                                                            {"dualpipev", "dualpipev"}};
  const auto colon = strategy.find(':');
  const auto known = kNames.find(strategy.substr(0, colon));
  if (known == kNames.end()) {
    std::string names;
    for (const auto& [ours, theirs] : kNames)
      names += (names.empty() ? "" : ", ") + ours;
    return user_error(fmt::format("the peer script has nothing like {}", strategy), "--strategies",
                      "it has " + names);
  }
  const std::string world = colon == std::string::npos ? "1" : strategy.substr(colon + 1);
  return std::pair(known->second, world.substr(0, world.find(',')));
}

Result<Measured> run_peer(const TrainBenchmark& b, const std::string& strategy) {
  PIPER_TRY(const auto peer, peer_strategy(strategy));
  const ScratchFile report;
  std::vector<std::string> command{b.peer_script,
                                   "--strategy",
                                   peer.first,
                                   "--world",
                                   peer.second,
                                   "--threads",
                                   "1",
                                   "--iters",
                                   std::to_string(b.iterations),
                                   "--warmup",
                                   std::to_string(b.warmup),
                                   "--no-probe",
                                   "--quiet",
                                   "--json",
                                   report.path()};
  if (!b.python.empty())
    command.insert(command.begin(), b.python);
  const auto sizes = size_flags(b);
  command.insert(command.end(), sizes.begin(), sizes.end());
  PIPER_CHECK_OK(run_program(command));
  PIPER_TRY(const auto json, report.read());
  return Measured{json.at("tokens_per_s_median"), json.at("losses")};
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// What share ours is of what the machine would allow; none for a strategy that has no such limit.
Result<std::optional<double>> share_of_limit(const TrainBenchmark& b, const std::string& strategy,
                                             const Measured& mine) {
  const auto colon = strategy.find(':');
  const std::string name = strategy.substr(0, colon);
  if (name == "dp") {
    PIPER_TRY(const double limit, run_independent(b, std::stoi(strategy.substr(colon + 1))));
    return std::optional(mine.tokens_per_second / limit);
  }
  if (name == "gpipe" || name == "1f1b")
    return std::optional(mine.pipeline_limit);
  return std::optional<double>();
}

/// Of one strategy, an element a round.
struct Rounds {
  std::vector<double> ours, theirs, ratios, shares;
  double difference = 0; ///< the largest, of any loss
};

double highest(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

std::vector<std::string> to_row(const TrainBenchmark& b, const std::string& strategy,
                                const Rounds& rounds) {
  const double tokens = static_cast<double>(b.batch * b.seq);
  std::vector<std::string> row{strategy, fmt::format("{:.0f}", median(rounds.ours)),
                               fmt::format("{:.0f}", highest(rounds.ours)),
                               fmt::format("{:.2f}", 1e3 * tokens / median(rounds.ours))};
  if (b.limits)
    row.push_back(rounds.shares.empty() ? "" : fmt::format("{:.3f}", median(rounds.shares)));
  if (rounds.theirs.empty())
    return row;
  row.push_back(fmt::format("{:.0f}", median(rounds.theirs)));
  row.push_back(fmt::format("{:.0f}", highest(rounds.theirs)));
  row.push_back(fmt::format("{:.3f}", median(rounds.ratios)));
  row.push_back(fmt::format("{:.2f}-{:.2f}",
                            *std::min_element(rounds.ratios.begin(), rounds.ratios.end()),
                            highest(rounds.ratios)));
  row.push_back(fmt::format("{:.3f}", highest(rounds.ours) / highest(rounds.theirs)));
  row.push_back(fmt::format("{:.3f}", 1 / median(rounds.ratios)));
  row.push_back(fmt::format("{:.1e}", rounds.difference));
  return row;
}

} // namespace

Result<void> bench_train(const TrainBenchmark& b) {
  const bool compare = !b.peer_script.empty();
  if (compare) // before anything runs for minutes
    for (const auto& strategy : b.strategies)
      if (auto known = peer_strategy(strategy); !known.ok())
        return std::move(known).error();
  std::vector<std::string> header{"strategy", "tokens/s", "best", "ms/iteration"};
  if (b.limits)
    header.emplace_back("of its limit");
  if (compare)
    for (const std::string& column : {b.peer_name, "best"s, "speed ratio"s, "range"s, "of bests"s,
                                      "time ratio"s, "loss difference"s})
      header.push_back(column);
  Table table(std::move(header));
  for (const auto& strategy : b.strategies) {
    Rounds rounds;
    for (int64_t round = 0; round < b.rounds; ++round) {
      PIPER_TRY(const Measured mine, run_ours(b, strategy));
      rounds.ours.push_back(mine.tokens_per_second);
      if (compare) {
        PIPER_TRY(const Measured peer, run_peer(b, strategy));
        rounds.theirs.push_back(peer.tokens_per_second);
        rounds.ratios.push_back(mine.tokens_per_second / peer.tokens_per_second);
        rounds.difference =
            std::max(rounds.difference, largest_difference(mine.losses, peer.losses));
      }
      if (b.limits) {
        PIPER_TRY(const auto share, share_of_limit(b, strategy, mine));
        if (share)
          rounds.shares.push_back(*share);
      }
      fmt::print(stderr, "{} round {} of {}\n", strategy, round + 1, b.rounds);
    }
    table.row(to_row(b, strategy, rounds));
  }
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
