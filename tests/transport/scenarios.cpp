#include "scenarios.h"

#include "transport/sum.h"

#include <atomic>
#include <cstring>
#include <fmt/format.h>
#include <memory>
#include <random>
#include <thread>

namespace piper::transport::testing {

using namespace std::chrono_literals;

void Rank::expect(bool condition, const std::string& what) {
  if (condition)
    return;
  std::lock_guard lock(mutex_);
  failures_ += fmt::format("device {}: {}\n", self(), what);
}

void Rank::expect_ok(const Result<void>& result, const std::string& what) {
  expect(result.ok(), result.ok() ? "" : what + ": " + result.error().to_string());
}

void Rank::expect_error(const Result<void>& result, ErrorKind kind, std::vector<std::string> parts,
                        const std::string& what) {
  if (result.ok())
    return expect(false, what + ": should have failed");
  const std::string text = result.error().to_string();
  expect(result.error().kind == kind,
         fmt::format("{}: is {}, should be {}: {}", what, piper::to_string(result.error().kind),
                     piper::to_string(kind), text));
  for (const auto& part : parts)
    expect(text.find(part) != std::string::npos,
           fmt::format("{}: '{}' is not in '{}'", what, part, text));
}

void Rank::barrier(ir::Epoch epoch) {
  std::vector<DeviceIndex> all(world);
  for (uint32_t i = 0; i < world; ++i)
    all[i] = i;
  int64_t one = 1;
  expect_ok(endpoint.all_reduce(all, {epoch, 0xfffff}, &one, 1, ir::DType::I64, in(20s)),
            "barrier");
  expect(one == world, "barrier: wrong sum");
}

void* Buffer::allocate(size_t bytes) {
  if (refuse)
    return nullptr;
  bytes_.resize(bytes);
  static std::byte nothing;
  return bytes ? bytes_.data() : &nothing;
}

void Buffer::adopt(Payload payload) {
  payload_ = std::move(payload);
  adopted_ = true;
}

const std::byte* Buffer::data() const {
  return adopted_ ? static_cast<const std::byte*>(payload_.data()) : bytes_.data();
}

std::vector<std::byte> pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;
  for (size_t i = 0; i < bytes; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<std::byte>(x >> 56);
  }
  return out;
}

Payload make_payload(std::vector<std::byte> bytes, std::atomic<int>* released) {
  struct Owner {
    std::vector<std::byte> bytes;
    std::atomic<int>* released;
  };
  auto* owner = new Owner{std::move(bytes), released};
  return Payload(owner->bytes.data(), owner->bytes.size(), owner, [](void* token) {
    auto* o = static_cast<Owner*>(token);
    if (o->released)
      ++*o->released;
    delete o;
  });
}

Deadline in(std::chrono::milliseconds time) {
  return Clock::now() + time;
}

std::string run_on_threads(const Scenario& scenario, std::span<Endpoint* const> endpoints,
                           uint32_t world) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (Endpoint* endpoint : endpoints)
    ranks.push_back(std::make_unique<Rank>(*endpoint, world));
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&] { scenario.run(*rank); });
  for (auto& thread : threads)
    thread.join();
  std::string failures;
  for (auto& rank : ranks)
    failures += rank->failures();
  return failures;
}

std::string to_hex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes)
    out += fmt::format("{:02x}", c);
  return out;
}

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

namespace {

void send(Rank& r, DeviceIndex to, const Key& key, size_t bytes, uint64_t seed) {
  r.expect_ok(r.endpoint.send(to, key, make_payload(pattern(bytes, seed))), "send");
}

void receive(Rank& r, DeviceIndex from, const Key& key, size_t bytes, uint64_t seed) {
  Buffer buffer;
  auto result = r.endpoint.recv(from, key, bytes, buffer, in(20s));
  r.expect_ok(result, fmt::format("recv of edge {}", key.edge));
  if (!result.ok())
    return;
  const auto wanted = pattern(bytes, seed);
  r.expect(buffer.size() == bytes &&
               (bytes == 0 || std::memcmp(buffer.data(), wanted.data(), bytes) == 0),
           fmt::format("{} bytes of edge {} differ", bytes, key.edge));
}

DeviceIndex next(Rank& r) {
  return (r.self() + 1) % r.world;
}
DeviceIndex previous(Rank& r) {
  return (r.self() + r.world - 1) % r.world;
}

void pairs_by_key(Rank& r) {
  const Key keys[] = {{1, 5, 0}, {1, 5, 1}, {1, 5, ir::kNoMicrobatch}, {1, 6, 0},
                      {2, 5, 0}, {1, 0, 0}, {1, 0x7ffff, 4000},        {1, 5, 2}};
  const size_t order[] = {6, 2, 7, 0, 5, 1, 4, 3};
  for (uint64_t i = 0; i < std::size(keys); ++i)
    send(r, next(r), keys[i], 100 + i, i + 10 * r.self());
  for (size_t i : order)
    receive(r, previous(r), keys[i], 100 + i, i + 10 * previous(r));
  // One key, several messages: in the order of issue, small and large mixed.
  const size_t sizes[] = {8, 300'000, 8, 40'000, 0, 1'000'000, 16};
  for (uint64_t i = 0; i < std::size(sizes); ++i)
    send(r, next(r), {3, 1, 1}, sizes[i], i);
  for (uint64_t i = 0; i < std::size(sizes); ++i)
    receive(r, previous(r), {3, 1, 1}, sizes[i], i);
  // The sender is part of the pairing: everyone sends to device 0 under one key.
  send(r, 0, {4, 1}, 64, r.self());
  if (r.self() == 0)
    for (DeviceIndex from = r.world; from-- > 0;)
      receive(r, from, {4, 1}, 64, from);
  r.expect_ok(r.endpoint.flush(in(20s)), "flush");
}

void all_sizes(Rank& r) {
  const size_t sizes[] = {0,     1,      8,      1000,    8191,    8192,       8193,
                          65536, 100001, 524288, 1 << 20, 3000001, 8 * 1 << 20};
  uint32_t edge = 0;
  for (size_t size : sizes) {
    // The receive is posted first on odd edges, as it waits for a message that comes later.
    if (r.self() % 2 == edge % 2)
      std::this_thread::sleep_for(2ms);
    send(r, next(r), {1, edge}, size, edge);
    receive(r, previous(r), {1, edge}, size, edge);
    ++edge;
  }
  r.expect_ok(r.endpoint.flush(in(20s)), "flush");
}

void wrong_size(Rank& r) {
  const std::pair<size_t, size_t> sent_expected[] = {
      {100, 96}, {100, 104}, {0, 4}, {4, 0}, {1 << 20, 1 << 19}, {1 << 19, 1 << 20}};
  uint32_t edge = 0;
  for (auto [sent, expected] : sent_expected) {
    send(r, next(r), {1, ++edge, 3}, sent, 1);
    send(r, next(r), {1, edge, 3}, 64, 2);
    Buffer buffer;
    r.expect_error(r.endpoint.recv(previous(r), {1, edge, 3}, expected, buffer, in(20s)),
                   ErrorKind::Internal,
                   {fmt::format("device {}: expected {} bytes from device {} (epoch 1, edge {}, "
                                "microbatch 3), but {} arrived",
                                r.self(), expected, previous(r), edge, sent)},
                   "wrong size");
    receive(r, previous(r), {1, edge, 3}, 64, 2);
  }
  r.expect_ok(r.endpoint.flush(in(20s)), "flush");
}

void deadlines(Rank& r) {
  for (auto wait : {0ms, 30ms}) {
    Buffer buffer;
    const auto begin = Clock::now();
    r.expect_error(r.endpoint.recv(previous(r), {1, 7, 2}, 64, buffer, begin + wait),
                   ErrorKind::Timeout,
                   {fmt::format("device {}: no message from device {} (epoch 1, edge 7, microbatch "
                                "2) before the deadline",
                                r.self(), previous(r))},
                   "recv");
    r.expect(Clock::now() - begin >= wait, "the deadline came early");
    r.expect(Clock::now() - begin < wait + 1s, "the deadline came late");
  }
  r.barrier();
  // The receive that gave up takes nothing from the next one.
  send(r, next(r), {1, 7, 2}, 64, 5);
  receive(r, previous(r), {1, 7, 2}, 64, 5);
  r.barrier();
  // A collective that device 0 stays away from.
  if (r.self() != 0) {
    const DeviceIndex group[] = {0, r.self()};
    float x = 1;
    r.expect_error(
        r.endpoint.all_reduce(group, {1, 8}, &x, 1, ir::DType::F32, in(30ms)), ErrorKind::Timeout,
        {fmt::format("device {}:", r.self()), "device 0", "(epoch 1, edge 8)", "deadline"},
        "collective");
  }
  r.barrier();
}

void many_threads(Rank& r) {
  constexpr int kThreads = 4, kMessages = 100;
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&r, t] {
      // Each thread sends and receives in orders of its own.
      std::mt19937 random(t * 100 + r.self());
      std::vector<int> order(kMessages);
      for (int i = 0; i < kMessages; ++i)
        order[i] = i;
      auto size = [](uint32_t t, int i) { return (t * 7919u + i * 104729u) % 20'000; };
      std::shuffle(order.begin(), order.end(), random);
      for (int i : order)
        send(r, next(r), {1, t, i}, size(t, i), t * 1000 + i);
      std::shuffle(order.begin(), order.end(), random);
      for (int i : order)
        receive(r, previous(r), {1, t, i}, size(t, i), t * 1000 + i);
    });
  for (auto& thread : threads)
    thread.join();
  r.expect_ok(r.endpoint.flush(in(20s)), "flush");
}

void payloads_are_released(Rank& r) {
  std::atomic<int> released = 0;
  const size_t sizes[] = {8, 5000, 200'000, 2'000'000};
  for (size_t size : sizes)
    r.expect_ok(r.endpoint.send(next(r), {1, 1}, make_payload(pattern(size, 1), &released)),
                "send");
  for (size_t size : sizes)
    receive(r, previous(r), {1, 1}, size, 1);
  r.expect_ok(r.endpoint.flush(in(20s)), "flush");
  r.barrier();
  r.expect(released == static_cast<int>(std::size(sizes)),
           fmt::format("{} of {} payloads were released", released.load(), std::size(sizes)));
  r.expect(r.endpoint.bytes_sent() >= 2'205'008, "bytes_sent counts too little");
}

void abort_wakes_all(Rank& r) {
  std::vector<std::thread> threads;
  std::atomic<int> waiting = 0;
  const Error reason{ErrorKind::PeerAborted, "device 77 ran out of memory", "", ""};
  auto expect_reason = [&](const Result<void>& result, const char* what) {
    r.expect_error(result, ErrorKind::PeerAborted, {"device 77 ran out of memory"}, what);
  };
  std::vector<DeviceIndex> all;
  for (DeviceIndex d = 0; d < r.world; ++d)
    all.push_back(d);
  for (uint32_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      Buffer buffer;
      ++waiting;
      expect_reason(r.endpoint.recv(previous(r), {1, t}, 64, buffer, in(20s)), "waiting recv");
    });
  if (r.self() != 0) // device 0 stays away, so all the others wait in it
    threads.emplace_back([&] {
      double x = 1;
      ++waiting;
      expect_reason(r.endpoint.all_reduce(all, {1, 9}, &x, 1, ir::DType::F64, in(20s)),
                    "waiting all_reduce");
    });
  while (waiting < static_cast<int>(threads.size()))
    std::this_thread::yield();
  std::this_thread::sleep_for(20ms);
  const auto begin = Clock::now();
  r.endpoint.abort(reason);
  for (auto& thread : threads)
    thread.join();
  r.expect(Clock::now() - begin < 1s, "abort took long");

  Buffer buffer;
  double x = 1;
  expect_reason(r.endpoint.send(next(r), {1, 1}, make_payload({})), "send");
  expect_reason(r.endpoint.recv(previous(r), {1, 1}, 8, buffer, in(20s)), "recv");
  expect_reason(r.endpoint.all_reduce(all, {1, 1}, &x, 1, ir::DType::F64, in(20s)), "all_reduce");
  expect_reason(r.endpoint.flush(in(20s)), "flush");
  r.endpoint.reset(2);
  r.barrier(2);
  send(r, next(r), {2, 0}, 64, 9);
  receive(r, previous(r), {2, 0}, 64, 9);
  r.barrier(2);
}

void stale_epochs(Rank& r) {
  // Arrived before the reset, and never taken.
  send(r, next(r), {1, 1}, 100, 1);
  send(r, next(r), {1, 1}, 1 << 20, 1);
  send(r, next(r), {5, 1}, 50, 4);
  r.barrier(5);
  // Odd devices are ahead; what the others still send under the old epoch arrives after it.
  if (r.self() % 2 == 1)
    r.endpoint.reset(5);
  r.barrier(5);
  std::atomic<int> released = 0;
  if (r.self() % 2 == 0) {
    for (size_t size : {8, 100'000, 1 << 20})
      r.expect_ok(r.endpoint.send(next(r), {4, 1}, make_payload(pattern(size, 2), &released)),
                  "late send");
    r.expect_ok(r.endpoint.flush(in(10s)), "flush of what the receiver drops");
    r.endpoint.reset(5);
  }
  r.barrier(5);
  receive(r, previous(r), {5, 1}, 50, 4);
  send(r, next(r), {5, 1}, 60, 3);
  receive(r, previous(r), {5, 1}, 60, 3);
  const std::string over = "is of an epoch that ended: the oldest is 5";
  Buffer buffer;
  float x = 1;
  const DeviceIndex group[] = {0, 1};
  r.expect_error(r.endpoint.recv(previous(r), {4, 1}, 8, buffer, in(20s)), ErrorKind::Internal,
                 {over}, "recv");
  r.expect_error(r.endpoint.send(next(r), {4, 1}, make_payload({})), ErrorKind::Internal, {over},
                 "send");
  if (r.self() < 2)
    r.expect_error(r.endpoint.all_reduce(group, {4, 1}, &x, 1, ir::DType::F32, in(20s)),
                   ErrorKind::Internal, {over}, "all_reduce");
  r.barrier(5);
  r.expect_ok(r.endpoint.flush(in(10s)), "flush");
  if (r.self() % 2 == 0)
    r.expect(released == 3, "dropped messages keep their payloads");
}

/// Elements whose sum depends on the order of adding.
template <class T> std::vector<T> elements(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> out(count);
  for (auto& x : out) {
    const auto bits = static_cast<int64_t>(random());
    if constexpr (std::is_integral_v<T>)
      x = bits;
    else
      x = std::ldexp(static_cast<T>(bits >> 40), static_cast<int>(bits & 31) - 16);
  }
  return out;
}

template <class T>
void collectives_of(Rank& r, ir::DType dtype, std::span<const DeviceIndex> group, size_t count,
                    uint32_t edge) {
  const size_t n = group.size();
  const size_t rank = std::find(group.begin(), group.end(), r.self()) - group.begin();
  std::vector<std::vector<T>> inputs;
  for (DeviceIndex d : group)
    inputs.push_back(elements<T>(count, d * 1000 + count));
  std::vector<T> total = inputs[0];
  for (size_t i = 1; i < n; ++i)
    for (size_t k = 0; k < count; ++k) {
      if constexpr (std::is_integral_v<T>)
        total[k] =
            static_cast<T>(static_cast<uint64_t>(total[k]) + static_cast<uint64_t>(inputs[i][k]));
      else
        total[k] += inputs[i][k];
    }
  const std::string what =
      fmt::format("{} elements of {} over {} devices", count, ir::to_string(dtype), n);
  auto same = [](const T* a, const T* b, size_t m) {
    return m == 0 || std::memcmp(a, b, m * sizeof(T)) == 0;
  };
  auto x = inputs[rank];
  r.expect_ok(r.endpoint.all_reduce(group, {1, edge}, x.data(), count, dtype, in(20s)), what);
  r.expect(same(x.data(), total.data(), count), "all_reduce of " + what + " differs");
  if (count % n)
    return;
  const size_t range = count / n;
  x = inputs[rank];
  r.expect_ok(r.endpoint.reduce_scatter(group, {1, edge}, x.data(), count, dtype, in(20s)), what);
  r.expect(same(x.data() + rank * range, total.data() + rank * range, range),
           "reduce_scatter of " + what + " differs");
  x = inputs[rank];
  std::vector<T> gathered(count);
  for (size_t i = 0; i < n; ++i)
    std::copy_n(inputs[i].begin() + i * range, range, gathered.begin() + i * range);
  r.expect_ok(r.endpoint.all_gather(group, {1, edge}, x.data(), count, dtype, in(20s)), what);
  r.expect(same(x.data(), gathered.data(), count), "all_gather of " + what + " differs");
}

void collectives(Rank& r) {
  for (uint32_t n = 1; n <= r.world; ++n) {
    uint32_t edge = n * 1000;
    // Ranks follow the group's order, not the devices': every second group runs backwards.
    std::vector<DeviceIndex> group;
    for (uint32_t i = 0; i < n; ++i)
      group.push_back(n % 2 ? n - 1 - i : i);
    if (r.self() >= n)
      continue;
    for (size_t count : {0u, 1u, 5u, 24u, 1000u, 2049u, 40'008u, 100'003u, 600'000u}) {
      collectives_of<float>(r, ir::DType::F32, group, count, ++edge);
      collectives_of<double>(r, ir::DType::F64, group, count, ++edge);
      collectives_of<int64_t>(r, ir::DType::I64, group, count, ++edge);
    }
  }
  r.expect_ok(r.endpoint.flush(in(20s)), "flush");
  r.barrier();
}

void collectives_at_once(Rank& r) {
  std::vector<DeviceIndex> all;
  for (DeviceIndex d = 0; d < r.world; ++d)
    all.push_back(d);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 30; ++i) // one key again and again: paired in order
        collectives_of<float>(r, ir::DType::F32, all, (t + 1) * 600 * r.world + 12 * i, t);
    });
  threads.emplace_back([&] { // a point-to-point message may share the key of a collective
    for (uint32_t i = 0; i < 30; ++i) {
      send(r, next(r), {1, 0}, 100, i);
      receive(r, previous(r), {1, 0}, 100, i);
    }
  });
  for (auto& thread : threads)
    thread.join();
  r.barrier();
}

void wrong_arguments(Rank& r) {
  float x[3] = {};
  const DeviceIndex others[] = {next(r)}, twice[] = {r.self(), r.self()};
  const DeviceIndex two[] = {r.self(), next(r)};
  const Key key{1, 3};
  auto internal = [&](const Result<void>& result, const char* part) {
    r.expect_error(result, ErrorKind::Internal, {part}, part);
  };
  internal(r.endpoint.all_reduce(others, key, x, 3, ir::DType::F32, in(1s)), "not in its group");
  internal(r.endpoint.all_reduce(twice, key, x, 3, ir::DType::F32, in(1s)), "in its group twice");
  internal(r.endpoint.all_reduce(two, key, x, 3, ir::DType::BF16, in(1s)),
           "cannot add elements of type bf16");
  internal(r.endpoint.reduce_scatter(two, key, x, 3, ir::DType::F32, in(1s)),
           "3 elements don't divide by 2 members");
  internal(r.endpoint.send(99, key, make_payload({})), "device 99 is not connected");
  Buffer buffer;
  internal(r.endpoint.recv(99, key, 8, buffer, in(1s)), "device 99 is not connected");
  r.barrier();
}

} // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"pairs by key", pairs_by_key},       {"all sizes", all_sizes},
      {"wrong size", wrong_size},           {"deadlines", deadlines},
      {"many threads", many_threads},       {"payloads are released", payloads_are_released},
      {"abort wakes all", abort_wakes_all}, {"stale epochs", stale_epochs},
      {"collectives", collectives},         {"collectives at once", collectives_at_once},
      {"wrong arguments", wrong_arguments},
  };
  return all;
}

} // namespace piper::transport::testing
