#include "actors/executor/instructions.h"
#include "actors/executor/payload.h"
#include "compiler/frontend/dtypes.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <numeric>

namespace piper::executor {
namespace {

/// Puts consecutive runs of rows where they belong in a tensor.
class ScatterSink final : public transport::Sink {
public:
  struct Run {
    char* to;
    size_t bytes;
  };
  explicit ScatterSink(std::vector<Run> runs) : runs_(std::move(runs)) {}

  void* allocate(size_t bytes) override {
    staging_.resize(bytes);
    return staging_.data();
  }
  void adopt(transport::Payload payload) override {
    scatter(static_cast<const char*>(payload.data()));
  }
  /// To be called once the receive is done.
  void finish() {
    if (!staging_.empty())
      scatter(staging_.data());
  }

private:
  void scatter(const char* from) const {
    for (const Run& run : runs_) {
      std::memcpy(run.to, from, run.bytes);
      from += run.bytes;
    }
  }
  std::vector<Run> runs_;
  std::vector<char> staging_;
};

ir::DType dtype_of(const at::Tensor& tensor) {
  return to_dtype(tensor.scalar_type()).value(); // of a value of the model
}

/// [B, T, …] as [ways, B, T / ways, …]: one range a rank, in memory of its own.
at::Tensor by_rank(const at::Tensor& whole, int64_t ways) {
  std::vector<int64_t> shape = whole.sizes().vec();
  shape[1] /= ways;
  shape.insert(shape.begin() + 1, ways);
  at::Tensor copy = at::empty(whole.sizes(), whole.options());
  std::vector<int64_t> moved = shape;
  std::swap(moved[0], moved[1]);
  copy = copy.view(moved);
  copy.copy_(whole.reshape(shape).transpose(0, 1));
  return copy;
}

} // namespace

Result<void> SliceTokensInstruction::transfer() {
  *target =
      source->chunk(static_cast<int64_t>(block.size()), 1)[static_cast<int64_t>(rank)].contiguous();
  return {};
}

Result<void> SumOrGatherInstruction::transfer() {
  const auto ways = static_cast<int64_t>(block.size());
  const auto count = [](const at::Tensor& tensor) { return static_cast<size_t>(tensor.numel()); };
  switch (move) {
  case ir::Move::AllReduce: {
    // In place where nothing else has its memory: autograd may have saved it under another name.
    at::Tensor sum = last_use && source->is_contiguous() && source->storage().use_count() == 1
                         ? std::move(*source)
                         : source->clone(at::MemoryFormat::Contiguous);
    PIPER_CHECK_OK(state->endpoint.all_reduce(block, key, sum.mutable_data_ptr(), count(sum),
                                              dtype_of(sum), state->wait_until()));
    *target = std::move(sum);
    return {};
  }
  case ir::Move::ReduceScatter: {
    const at::Tensor parts = by_rank(*source, ways);
    PIPER_CHECK_OK(state->endpoint.reduce_scatter(
        block, key, parts.mutable_data_ptr(), count(parts), dtype_of(parts), state->wait_until()));
    *target = parts[static_cast<int64_t>(rank)].clone();
    return {};
  }
  default:
    break;
  }
  std::vector<int64_t> shape = source->sizes().vec();
  shape.insert(shape.begin(), ways);
  const at::Tensor parts = at::empty(shape, source->options());
  parts[static_cast<int64_t>(rank)].copy_(*source);
  PIPER_CHECK_OK(state->endpoint.all_gather(block, key, parts.mutable_data_ptr(), count(parts),
                                            dtype_of(parts), state->wait_until()));
  std::vector<int64_t> whole = source->sizes().vec();
  whole[1] *= ways;
  *target = parts.transpose(0, 1).reshape(whole).contiguous();
  return {};
}

Result<void> AllToAllInstruction::transfer() {
  return sent_counts ? move_rows() : move_counts();
}

/// Each rank has a line [1, experts] and gets the columns of its experts, [sources, experts of a
/// rank]. Ranks that share rows are one source.
Result<void> AllToAllInstruction::move_counts() {
  const auto ranks = static_cast<int64_t>(block.size());
  const int64_t experts = source->numel() / ranks;
  const at::Tensor lines = at::empty({ranks, source->numel()}, source->options());
  lines[static_cast<int64_t>(rank)].copy_(source->view(-1));
  PIPER_CHECK_OK(state->endpoint.all_gather(block, key, lines.mutable_data_ptr(),
                                            static_cast<size_t>(lines.numel()), ir::DType::I64,
                                            state->wait_until()));
  *target = lines.slice(0, 0, ranks, static_cast<int64_t>(sharers))
                .narrow(1, static_cast<int64_t>(rank) * experts, experts)
                .contiguous();
  return {};
}

/// At its source a rank's rows are sorted by expert, and so by the rank that has it; at the experts
/// by expert and then by the source that they come from. One message goes each way between two
/// ranks. Of ranks that share rows the one at the receiver's place among its own sends them; all
/// get what comes back.
Result<void> AllToAllInstruction::move_rows() {
  const size_t ranks = block.size(), sources = ranks / sharers, own = rank / sharers;
  const int64_t* outside = (to_experts ? sent_counts : received_counts)->const_data_ptr<int64_t>();
  const at::Tensor& inside_counts = to_experts ? *received_counts : *sent_counts;
  const int64_t* inside = inside_counts.const_data_ptr<int64_t>();
  const auto experts = static_cast<size_t>(inside_counts.size(1)); // of a rank

  const at::Tensor rows = source->contiguous();
  std::vector<int64_t> shape = rows.sizes().vec();
  shape[0] = to_experts ? std::accumulate(inside, inside + sources * experts, int64_t{0})
                        : std::accumulate(outside, outside + ranks * experts, int64_t{0});
  *target = at::empty(shape, rows.options());
  size_t row_bytes = rows.element_size();
  for (size_t d = 1; d < shape.size(); ++d)
    row_bytes *= static_cast<size_t>(shape[d]);
  char* const from = static_cast<char*>(rows.mutable_data_ptr());
  char* const to = static_cast<char*>(target->mutable_data_ptr());

  // Where the rows of each rank begin outside, and those of each source and expert at the experts.
  std::vector<size_t> outside_at(ranks + 1), inside_at(sources * experts);
  for (size_t r = 0; r < ranks; ++r) {
    outside_at[r + 1] = outside_at[r];
    for (size_t e = 0; e < experts; ++e)
      outside_at[r + 1] += static_cast<size_t>(outside[r * experts + e]) * row_bytes;
  }
  size_t at = 0;
  for (size_t e = 0; e < experts; ++e)
    for (size_t s = 0; s < sources; ++s) {
      inside_at[s * experts + e] = at;
      at += static_cast<size_t>(inside[s * experts + e]) * row_bytes;
    }
  const auto runs_of = [&](char* base, size_t s) {
    std::vector<ScatterSink::Run> runs;
    for (size_t e = 0; e < experts; ++e)
      runs.push_back({base + inside_at[s * experts + e],
                      static_cast<size_t>(inside[s * experts + e]) * row_bytes});
    return runs;
  };
  const auto bytes_of = [](const std::vector<ScatterSink::Run>& runs) {
    size_t bytes = 0;
    for (const auto& run : runs)
      bytes += run.bytes;
    return bytes;
  };
  const auto receive = [&](size_t r, std::vector<ScatterSink::Run> runs) -> Result<void> {
    const size_t bytes = bytes_of(runs);
    if (bytes == 0)
      return {};
    ScatterSink sink(std::move(runs));
    PIPER_CHECK_OK(state->endpoint.recv(block[r], key, bytes, sink, state->wait_until()));
    sink.finish();
    return {};
  };

  if (to_experts) {
    for (size_t r = rank % sharers; r < ranks; r += sharers) {
      const size_t bytes = outside_at[r + 1] - outside_at[r];
      if (r == rank) // stays
        ScatterSink(runs_of(to, own)).adopt({from + outside_at[r], bytes, nullptr, nullptr});
      else if (bytes > 0)
        PIPER_CHECK_OK(
            state->endpoint.send(block[r], key, payload_of(rows, from + outside_at[r], bytes)));
    }
    for (size_t s = 0; s < sources; ++s)
      if (s != own)
        PIPER_CHECK_OK(receive(s * sharers + rank % sharers, runs_of(to, s)));
    return {};
  }
  // Back: what came from one source lies in pieces.
  for (size_t s = 0; s < sources; ++s) {
    const std::vector<ScatterSink::Run> runs = runs_of(from, s);
    const size_t bytes = bytes_of(runs);
    if (bytes == 0)
      continue;
    const at::Tensor packed =
        s == own ? *target
                 : at::empty({static_cast<int64_t>(bytes)}, rows.options().dtype(at::kByte));
    char* const first =
        s == own ? to + outside_at[rank] : static_cast<char*>(packed.mutable_data_ptr());
    char* out = first;
    for (const auto& run : runs) {
      std::memcpy(out, run.to, run.bytes);
      out += run.bytes;
    }
    for (size_t r = s * sharers; r < (s + 1) * sharers; ++r)
      if (r != rank)
        PIPER_CHECK_OK(state->endpoint.send(block[r], key, payload_of(packed, first, bytes)));
  }
  for (size_t r = 0; r < ranks; ++r)
    if (r != rank)
      PIPER_CHECK_OK(receive(r, {{to + outside_at[r], outside_at[r + 1] - outside_at[r]}}));
  return {};
}

} // namespace piper::executor
