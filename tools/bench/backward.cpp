#include "tools/bench/backward.h"

#include "actors/executor/profile.h"
#include "tools/piper/numbers.h"
#include "tools/piper/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace piper::cli {

Result<void> bench_backward(const Model& model, const BackwardBenchmark& benchmark) {
  executor::ProfileOptions options;
  options.rows = {benchmark.rows > 0 ? benchmark.rows : model.spec->batch};
  options.threads = benchmark.threads;
  options.time = benchmark.time;
  std::vector<double> whole, inputs, weights, ratios;
  for (int64_t round = 0; round < benchmark.rounds; ++round) {
    PIPER_TRY(const executor::Profile profile, executor::profile_model(model, options));
    double b = 0, bi = 0, bw = 0;
    for (const executor::CallProfile& call : profile.calls) {
      const executor::CallSample& sample = call.samples.front();
      if (sample.backward == 0)
        continue;
      b += profile.backward_chunk + sample.backward;
      bi += profile.backward_chunk + sample.backward_input;
      if (sample.backward_weight > 0) // not of a call without parameters
        bw += profile.backward_chunk + sample.backward_weight;
    }
    whole.push_back(b);
    inputs.push_back(bi);
    weights.push_back(bw);
    ratios.push_back((bi + bw) / b);
  }
  Table table({"rows", "B ms", "BI ms", "BW ms", "(BI + BW) / B", "range"});
  const auto milliseconds = [](const std::vector<double>& seconds) {
    return fmt::format("{:.3f}", 1e3 * median(seconds));
  };
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  table.row({std::to_string(options.rows.front()), milliseconds(whole), milliseconds(inputs),
             milliseconds(weights), fmt::format("{:.3f}", median(ratios)),
             fmt::format("{:.3f}-{:.3f}", *least, *most)});
  std::fputs(table.to_string().c_str(), stdout);
  return {};
}

} // namespace piper::cli
