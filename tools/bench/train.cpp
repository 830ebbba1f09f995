#include "tools/bench/train.h"

#include "tools/piper/numbers.h"
#include "tools/piper/processes.h"
#include "tools/piper/table.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <unistd.h>

namespace piper::cli {

namespace {

/// Speed and losses of one run.
struct Measured {
  double tokens_per_second = 0; ///< median of the iterations after the warm-up
  std::vector<double> losses;
};

/// A file that is gone at the end of the scope.
class ScratchFile {
public:
  ScratchFile()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("piper-bench-{}.json", getpid())) {}
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
  return measured;
}

/// "dp:4" -> {"ddp", 4}
Result<std::pair<std::string, std::string>> peer_strategy(const std::string& strategy) {
  const auto colon = strategy.find(':');
  std::string name = strategy.substr(0, colon);
  const std::string world = colon == std::string::npos ? "1" : strategy.substr(colon + 1);
  if (name == "dp")
    name = "ddp";
  if (name != "single" && name != "ddp" && name != "gpipe" && name != "1f1b")
    return user_error(fmt::format("the peer script has nothing like {}", strategy), "--strategies",
                      "compare single, dp:N, gpipe:N or 1f1b:N");
  return std::pair(name, world);
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

} // namespace

Result<void> bench_train(const TrainBenchmark& b) {
  const bool compare = !b.peer_script.empty();
  if (compare) // before anything runs for minutes
    for (const auto& strategy : b.strategies)
      if (auto known = peer_strategy(strategy); !known.ok())
        return std::move(known).error();
  const double tokens = static_cast<double>(b.batch * b.seq);
  Table table(compare ? std::vector<std::string>{"strategy", "tokens/s", "ms/iteration",
                                                 b.peer_name + " tokens/s", b.peer_name + " ms",
                                                 "speed ratio", "time ratio", "loss difference"}
                      : std::vector<std::string>{"strategy", "tokens/s", "ms/iteration"});
  for (const auto& strategy : b.strategies) {
    std::vector<double> ours, theirs, ratios;
    double difference = 0;
    for (int64_t round = 0; round < b.rounds; ++round) {
      PIPER_TRY(const Measured mine, run_ours(b, strategy));
      ours.push_back(mine.tokens_per_second);
      if (compare) {
        PIPER_TRY(const Measured peer, run_peer(b, strategy));
        theirs.push_back(peer.tokens_per_second);
        ratios.push_back(mine.tokens_per_second / peer.tokens_per_second);
        difference = std::max(difference, largest_difference(mine.losses, peer.losses));
      }
      fmt::print(stderr, "{} round {} of {}\n", strategy, round + 1, b.rounds);
    }
    std::vector<std::string> row{strategy, fmt::format("{:.0f}", median(ours)),
                                 fmt::format("{:.2f}", 1e3 * tokens / median(ours))};
    if (compare) {
      row.push_back(fmt::format("{:.0f}", median(theirs)));
      row.push_back(fmt::format("{:.2f}", 1e3 * tokens / median(theirs)));
      row.push_back(fmt::format("{:.3f}", median(ratios)));
      row.push_back(fmt::format("{:.3f}", 1 / median(ratios)));
      row.push_back(fmt::format("{:.1e}", difference));
    }
    table.row(std::move(row));
  }
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
