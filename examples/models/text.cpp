#include "examples/models/text.h"

#include "examples/models/random.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace piper::models {

namespace {

namespace fs = std::filesystem;

Result<std::string> read(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> files;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::directory_iterator(path, error))
      if (entry.is_regular_file(error) && !entry.is_symlink(error))
        files.push_back(entry.path());
    std::sort(files.begin(), files.end());
  } else {
    files.emplace_back(path);
  }
  std::ostringstream text;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in || (fs::file_size(file, error) > 0 && !(text << in.rdbuf())))
      return user_error(fmt::format("cannot read the text '{}'", file.string()), "data",
                        "give the path of a readable file, or of a folder of files");
  }
  return text.str();
}

/// The bytes [begin, end) of the text.
struct Part {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

} // namespace

Result<DataSource> text_source(const TextConfig& c) {
  if (c.sample_microbatches < 1 || c.batch % c.sample_microbatches != 0)
    return user_error(fmt::format("a batch of {} does not split to {} sample_microbatches", c.batch,
                                  c.sample_microbatches),
                      "data", "batch must be a multiple of sample_microbatches");
  PIPER_TRY(std::string bytes, read(c.path));
  auto text = std::make_shared<const std::string>(std::move(bytes));
  const size_t kept = c.holdout ? text->size() - text->size() / 10 : text->size();
  const Part training{0, kept}, held_out{kept, text->size()};
  const size_t least = static_cast<size_t>(c.seq) + 2;
  if (training.size() < least || (c.holdout && held_out.size() < least))
    return user_error(fmt::format("the text '{}' of {} bytes is too short for sequences of {}",
                                  c.path, text->size(), c.seq),
                      "data", fmt::format("it needs {} bytes", c.holdout ? 10 * least : least));
  for (unsigned char byte : *text)
    if (byte >= c.vocab)
      return user_error(fmt::format("the text '{}' has the byte {}, the vocabulary only {}", c.path,
                                    byte, c.vocab),
                        "data", "a vocabulary of 256 holds every byte");

  return DataSource([=](const BatchRequest& request) {
    if (request.held_out && !c.holdout)
      throw std::invalid_argument("no text is held out for evaluation: set `holdout`");
    const Part& part = request.held_out ? held_out : training;
    const uint64_t seed = request.held_out ? ~c.seed : c.seed;
    const int64_t shift = request.input == "targets" ? 1 : 0;
    const int64_t group_rows = c.batch / c.sample_microbatches;
    at::Tensor out = at::empty({request.rows, c.seq}, at::kLong);
    int64_t* to = out.data_ptr<int64_t>();
    const uint64_t iteration_key = mix(mix(seed) + static_cast<uint64_t>(request.iteration));
    for (int64_t r = request.first_row; r < request.first_row + request.rows; ++r) {
      const uint64_t m = static_cast<uint64_t>(r / group_rows);
      const uint64_t j = static_cast<uint64_t>(r % group_rows);
      const uint64_t start =
          mix(mix(iteration_key + m) + j) % (part.size() - static_cast<size_t>(c.seq) - 1);
      const char* from = text->data() + part.begin + start + shift;
      for (int64_t t = 0; t < c.seq; ++t)
        *to++ = static_cast<unsigned char>(from[t]);
    }
    return out;
  });
}

} // namespace piper::models
