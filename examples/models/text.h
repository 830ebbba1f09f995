// Text as a data source: windows of bytes, at places that are a function of the seed, the iteration
// and the row.
#pragma once

#include "compiler/frontend/model.h"
#include "ir/result.h"

#include <string>

namespace piper::models {

struct TextConfig {
  /// A file; or a folder, whose regular files (no links) are joined in the order of their names.
  std::string path = "/usr/share/common-licenses";
  uint64_t seed = 1;
  int64_t seq = 128;
  int64_t batch = 16; ///< rows of the global batch
  /// Row r of the batch is sample j = r % n of part m = r / n, where n = batch / parts. It starts
  /// at byte mix(mix(mix(mix(seed) + iteration) + m) + j) % (bytes - seq - 1).
  int64_t sample_microbatches = 1;
  int64_t vocab = 256; ///< bytes must be below
  /// Keeps the last tenth of the text for evaluation; training then samples from the rest.
  bool holdout = false;
};

/// Serves "tokens" and "targets" (the same shifted by one byte), int64 [rows, seq]. The text is
/// read once, here. User errors: no such file, a text too short, a byte that is no token, a batch
/// that does not split. The source throws std::invalid_argument when asked for held-out rows
/// without `holdout`.
Result<DataSource> text_source(const TextConfig& config);

} // namespace piper::models
