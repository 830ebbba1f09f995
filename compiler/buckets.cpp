#include "compiler/buckets.h"

#include <algorithm>
#include <set>

namespace piper::compiler {

using namespace ir;

std::vector<std::vector<CallId>> cut_buckets(const ModelSpec& model,
                                             const std::vector<CallId>& calls, double bucket_mb) {
  const std::vector<uint32_t> segments = model.segments();
  const double limit = (bucket_mb > 0 ? bucket_mb : kDefaultBucketMb) * 1e6;
  std::vector<std::vector<CallId>> runs;
  std::set<ParamId> seen;
  double bytes = limit; // the first call opens a run
  for (size_t i = calls.size(); i-- > 0;) {
    const CallId call = calls[i];
    const bool same_segment =
        i + 1 < calls.size() && segments[call.value] == segments[calls[i + 1].value];
    if (bytes >= limit && !same_segment) {
      runs.emplace_back();
      bytes = 0;
    }
    runs.back().push_back(call);
    for (ParamId param : model.call(call).params)
      if (seen.insert(param).second)
        bytes += static_cast<double>(model.param(param).type.bytes(0));
  }
  // A last run without parameters of its own has nothing to reduce: it joins its neighbour.
  if (runs.size() > 1 && bytes == 0) {
    auto last = std::move(runs.back());
    runs.pop_back();
    runs.back().insert(runs.back().end(), last.begin(), last.end());
  }
  for (auto& run : runs)
    std::reverse(run.begin(), run.end());
  return runs;
}

} // namespace piper::compiler
