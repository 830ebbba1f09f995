#include "actors/executor/bench.h"

#include "actors/executor/cpu_stream.h"
#include "actors/executor/interpreter.h"

#include <algorithm>
#include <limits>

namespace piper::executor {
namespace {

struct EmptyInstruction final : BoundInstruction {
protected:
  Result<void> execute() override { return {}; }
};

/// The transport of a device that is alone.
class NoEndpoint final : public transport::Endpoint {
public:
  ir::DeviceIndex self() const override { return 0; }
  Result<void> send(ir::DeviceIndex, const transport::Key&, transport::Payload) override {
    return alone();
  }
  Result<void> recv(ir::DeviceIndex, const transport::Key&, size_t, transport::Sink&,
                    transport::Deadline) override {
    return alone();
  }
  Result<void> all_reduce(std::span<const ir::DeviceIndex>, const transport::Key&, void*, size_t,
                          ir::DType, transport::Deadline) override {
    return alone();
  }
  Result<void> reduce_scatter(std::span<const ir::DeviceIndex>, const transport::Key&, void*,
                              size_t, ir::DType, transport::Deadline) override {
    return alone();
  }
  Result<void> all_gather(std::span<const ir::DeviceIndex>, const transport::Key&, void*, size_t,
                          ir::DType, transport::Deadline) override {
    return alone();
  }
  Result<void> flush(transport::Deadline) override { return {}; }
  void abort(Error) override {}
  void reset(ir::Epoch) override {}
  uint64_t bytes_sent() const override { return 0; }

private:
  static Error alone() { return internal_error("a device that is alone has no transport"); }
};

/// `instructions` empty ones, in turn on each of the streams.
std::shared_ptr<BoundPlan> empty_plan(RunState& state, StreamBackend& backend, Holder& holder,
                                      int streams, int instructions) {
  auto plan = std::make_shared<BoundPlan>();
  plan->plans = std::make_shared<ir::PlanSet>();
  for (int s = 0; s < streams; ++s) {
    plan->streams.push_back(std::make_unique<BoundPlan::BoundStream>());
    plan->streams.back()->stream = backend.make_stream("empty", true);
    plan->streams.back()->compute = true;
  }
  for (int i = 0; i < instructions; ++i) {
    auto instruction = std::make_unique<EmptyInstruction>();
    instruction->state = &state;
    instruction->holder = &holder;
    std::vector<Event*> waits;
    if (streams > 1 && i > 0)
      waits.push_back(plan->events.back().get());
    if (streams > 1)
      plan->events.push_back(backend.make_event());
    plan->append(std::move(instruction), *plan->streams[i % streams], waits,
                 streams > 1 ? plan->events.back().get() : nullptr);
  }
  return plan;
}

} // namespace

Result<DispatchFigures> measure_dispatch(int instructions, uint64_t (*allocations)()) {
  constexpr int kRounds = 20;
  DeviceOptions options;
  NoEndpoint endpoint;
  Interpreter interpreter(endpoint, options);
  CpuBackend backend({});
  auto account = MemoryAccount::make(0);
  Holder& holder = account->holder("nothing");
  DispatchFigures figures;
  for (int streams : {1, 2}) {
    auto plan = empty_plan(interpreter.state(), backend, holder, streams, instructions);
    double best = std::numeric_limits<double>::infinity();
    uint64_t fewest = std::numeric_limits<uint64_t>::max();
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t before = allocations ? allocations() : 0;
      const auto start = Clock::now();
      PIPER_TRY([[maybe_unused]] auto result, interpreter.run(plan, round));
      best = std::min(best, std::chrono::duration<double, std::nano>(Clock::now() - start).count());
      fewest = std::min(fewest, allocations ? allocations() - before : 0);
    }
    (streams == 1 ? figures.one_stream_ns : figures.two_streams_ns) = best / instructions;
    figures.allocations = std::max(figures.allocations, static_cast<double>(fewest) / instructions);
  }
  return figures;
}

} // namespace piper::executor
