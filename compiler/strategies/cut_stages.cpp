#include "compiler/strategies/strategies.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace piper::compiler {

using namespace ir;

namespace {

/// Ends of the parts: part i is [ends[i-1], ends[i]). No part is empty.
std::vector<size_t> partition(const std::vector<double>& costs, size_t parts) {
  const size_t n = costs.size();
  std::vector<double> prefix(n + 1);
  for (size_t i = 0; i < n; ++i)
    prefix[i + 1] = prefix[i] + costs[i];
  // best[k][i]: the costliest of k parts over the first i, at its least.
  const double infinite = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, infinite));
  std::vector<std::vector<size_t>> cut(parts + 1, std::vector<size_t>(n + 1));
  best[0][0] = 0;
  for (size_t k = 1; k <= parts; ++k)
    for (size_t i = k; i <= n; ++i)
      for (size_t j = k - 1; j < i; ++j) {
        const double cost = std::max(best[k - 1][j], prefix[i] - prefix[j]);
        if (cost < best[k][i]) {
          best[k][i] = cost;
          cut[k][i] = j;
        }
      }
  std::vector<size_t> ends(parts);
  size_t end = n;
  for (size_t k = parts; k-- > 0;) {
    ends[k] = end;
    end = cut[k + 1][end];
  }
  return ends;
}

} // namespace

Result<std::vector<std::vector<CallId>>> cut_stages(const ModelSpec& model, int stages,
                                                    const CostModel* seconds_of, int64_t rows) {
  const auto parts = static_cast<size_t>(stages);
  if (model.calls.size() < parts)
    return user_error(fmt::format("{} stages need at least as many calls; model '{}' has {}",
                                  stages, model.name, model.calls.size()),
                      "", "use fewer stages, or a model of more calls");
  // The pieces that stay whole: segments, or single calls if there are too few of those.
  std::vector<std::vector<CallId>> pieces;
  const std::vector<uint32_t> segments = model.segments();
  const bool whole = segments.back() + 1 >= parts;
  for (size_t c = 0; c < model.calls.size(); ++c) {
    if (c == 0 || !whole || segments[c] != segments[c - 1])
      pieces.emplace_back();
    pieces.back().push_back(CallId(c));
  }
  std::vector<double> costs;
  double total = 0;
  for (const auto& piece : pieces) {
    double cost = 0;
    for (CallId call : piece)
      cost += seconds_of ? seconds_of->seconds(call, rows) : model.call(call).flops_per_row;
    costs.push_back(cost);
    total += cost;
  }
  if (total == 0) // nothing declared: pieces count alike
    std::fill(costs.begin(), costs.end(), 1.0);

  std::vector<std::vector<CallId>> result(parts);
  const std::vector<size_t> ends = partition(costs, parts);
  for (size_t s = 0, piece = 0; s < parts; ++s)
    for (; piece < ends[s]; ++piece)
      result[s].insert(result[s].end(), pieces[piece].begin(), pieces[piece].end());
  return result;
}

} // namespace piper::compiler
