#include "transport/bench.h"

#include <algorithm>
#include <cstring>
#include <functional>

namespace piper::transport {
namespace {

constexpr DeviceIndex kGroup[] = {0, 1};
constexpr auto kLimit = std::chrono::seconds(30);
constexpr Key kData{0, 1}, kControl{0, 2};

/// Receives into one buffer; what is handed over is copied there.
struct Buffer : Sink {
  explicit Buffer(size_t bytes) : memory(bytes) {}
  void* allocate(size_t) override { return memory.data(); }
  void adopt(Payload payload) override {
    if (payload.bytes() > 0)
      std::memcpy(memory.data(), payload.data(), payload.bytes());
  }
  std::vector<std::byte> memory;
};

using Step = std::function<Result<void>()>;

class Bench {
public:
  Bench(Endpoint& endpoint, size_t bytes, std::chrono::milliseconds time)
      : endpoint_(endpoint), sender_(endpoint.self() == 0), peer_(1 - endpoint.self()),
        bytes_(bytes), time_(time), source_(bytes), sink_(bytes) {}

  Result<BenchRow> stream() {
    const size_t window = std::clamp<size_t>((16 << 20) / bytes_, 4, 256);
    return measure("stream", window, [this, window]() -> Result<void> {
      for (size_t i = 0; i < window; ++i)
        PIPER_CHECK_OK(sender_ ? send(kData) : receive(kData));
      int64_t done = 0;
      return sender_ ? receive_number(done) : send_number(done);
    });
  }

  Result<BenchRow> ping_pong() {
    return measure("ping_pong", 2, [this]() -> Result<void> {
      if (sender_)
        PIPER_CHECK_OK(send(kData));
      PIPER_CHECK_OK(receive(kData));
      return sender_ ? Result<void>() : send(kData);
    });
  }

  Result<BenchRow> all_reduce() {
    return measure("all_reduce", 1, [this] {
      return endpoint_.all_reduce(kGroup, kData, source_.data(), bytes_ / sizeof(float),
                                  ir::DType::F32, Clock::now() + kLimit);
    });
  }

private:
  Result<void> send(const Key& key) {
    return endpoint_.send(peer_, key, Payload(source_.data(), bytes_, nullptr, nullptr));
  }
  Result<void> receive(const Key& key) {
    return endpoint_.recv(peer_, key, bytes_, sink_, Clock::now() + kLimit);
  }
  Result<void> send_number(int64_t& number) {
    PIPER_CHECK_OK(endpoint_.send(peer_, kControl, Payload(&number, 8, nullptr, nullptr)));
    return endpoint_.flush(Clock::now() + kLimit);
  }
  Result<void> receive_number(int64_t& number) {
    Buffer buffer(8);
    PIPER_CHECK_OK(endpoint_.recv(peer_, kControl, 8, buffer, Clock::now() + kLimit));
    std::memcpy(&number, buffer.memory.data(), 8);
    return {};
  }
  Result<void> barrier() {
    int64_t one = 1;
    return endpoint_.all_reduce(kGroup, kControl, &one, 1, ir::DType::I64, Clock::now() + kLimit);
  }

  /// Times `step`, which moves `messages` messages one after the other, again and again.
  Result<BenchRow> measure(const char* op, size_t messages, const Step& step) {
    PIPER_CHECK_OK(step());
    const auto begin = Clock::now();
    PIPER_CHECK_OK(step());
    // Device 0 says how often, so that both agree.
    int64_t count =
        std::clamp<int64_t>(time_ / std::max(Clock::now() - begin, Clock::duration(1)), 5, 2000);
    PIPER_CHECK_OK(sender_ ? send_number(count) : receive_number(count));
    std::vector<double> seconds;
    for (int64_t i = 0; i < count; ++i) {
      PIPER_CHECK_OK(barrier());
      const auto start = Clock::now();
      PIPER_CHECK_OK(step());
      const std::chrono::duration<double> took = Clock::now() - start;
      seconds.push_back(took.count() / static_cast<double>(messages));
    }
    PIPER_CHECK_OK(endpoint_.flush(Clock::now() + kLimit));
    std::sort(seconds.begin(), seconds.end());
    return BenchRow{op, bytes_, seconds.front(), seconds[seconds.size() / 2]};
  }

  Endpoint& endpoint_;
  const bool sender_;
  const DeviceIndex peer_;
  const size_t bytes_;
  const std::chrono::milliseconds time_;
  std::vector<std::byte> source_;
  Buffer sink_;
};

} // namespace

std::vector<size_t> default_bench_sizes() {
  return {8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 64 << 20};
}

Result<std::vector<BenchRow>> run_transport_bench_rank(Endpoint& endpoint,
                                                       std::span<const size_t> sizes,
                                                       std::chrono::milliseconds per_row) {
  std::vector<BenchRow> rows;
  for (size_t bytes : sizes) {
    if (bytes == 0 || bytes % sizeof(float) != 0)
      return user_error("the sizes of a transport benchmark are multiples of 4", "bench");
    Bench bench(endpoint, bytes, per_row);
    for (auto op : {&Bench::stream, &Bench::ping_pong, &Bench::all_reduce}) {
      PIPER_TRY(BenchRow row, (bench.*op)());
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

} // namespace piper::transport
