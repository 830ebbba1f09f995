#include "actors/executor/instructions.h"
#include "actors/executor/payload.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstring>

namespace piper::executor {
namespace {

/// Receives a tensor: allocates it, or takes over the sender's.
class TensorSink final : public transport::Sink {
public:
  explicit TensorSink(RecvInstruction& instruction) : instruction_(instruction) {}

  void* allocate(size_t) override {
    *instruction_.target = at::empty(instruction_.shape, instruction_.dtype);
    return instruction_.target->mutable_data_ptr();
  }
  void adopt(transport::Payload payload) override {
    *instruction_.target = take_over(owner_of(std::move(payload)), *instruction_.holder);
  }

private:
  RecvInstruction& instruction_;
};

/// Receives into memory that is there.
class RangeSink final : public transport::Sink {
public:
  explicit RangeSink(FlatRange range) : range_(range) {}
  void* allocate(size_t) override { return range_.data; }
  void adopt(transport::Payload payload) override {
    std::memcpy(range_.data, payload.data(), payload.bytes());
  }

private:
  FlatRange range_;
};

double squares_of(const FlatRange& range) {
  if (range.dtype == ir::DType::F64)
    return sum_of_squares(reinterpret_cast<const double*>(range.data), range.count);
  return sum_of_squares(reinterpret_cast<const float*>(range.data), range.count);
}

} // namespace

Result<void> TransportInstruction::execute() {
  if (!waited)
    return transfer();
  auto start = Clock::now();
  auto done = transfer();
  *waited += Clock::now() - start;
  return done;
}

Result<void> SendInstruction::transfer() {
  at::Tensor tensor = (last_use ? std::move(*source) : *source).contiguous();
  void* data = tensor.mutable_data_ptr();
  size_t bytes = tensor.nbytes();
  return state->endpoint.send(to, key, payload_of(std::move(tensor), data, bytes));
}

Result<void> RecvInstruction::transfer() {
  TensorSink sink(*this);
  return state->endpoint.recv(from, key, bytes, sink, state->wait_until());
}

Result<void> CollectiveInstruction::transfer() {
  auto call = [&](auto member) {
    return (state->endpoint.*member)(group, key, range.data, static_cast<size_t>(range.count),
                                     range.dtype, state->wait_until());
  };
  switch (kind) {
  case Kind::AllReduce:
    return call(&transport::Endpoint::all_reduce);
  case Kind::ReduceScatter:
    return call(&transport::Endpoint::reduce_scatter);
  case Kind::AllGather:
    break;
  }
  return call(&transport::Endpoint::all_gather);
}

Result<void> GatherInstruction::transfer() {
  bucket->open(ir::StateKind::Param, *memory);
  const FlatRange whole = bucket->whole(ir::StateKind::Param);
  const FlatRange own = bucket->range(ir::StateKind::Param);
  std::memcpy(whole.data + bucket->owned_begin * ir::size_of(whole.dtype), own.data,
              static_cast<size_t>(own.bytes()));
  return state->endpoint.all_gather(group, key, whole.data, static_cast<size_t>(whole.count),
                                    whole.dtype, state->wait_until());
}

Result<void> ShardGradsInstruction::transfer() {
  const FlatRange whole = bucket->whole(ir::StateKind::Grad);
  PIPER_CHECK_OK(state->endpoint.reduce_scatter(
      group, key, whole.data, static_cast<size_t>(whole.count), whole.dtype, state->wait_until()));
  bucket->grad_shard.add_(bucket->grad.narrow(0, bucket->owned_begin, bucket->owned_count));
  bucket->close(ir::StateKind::Grad);
  return {};
}

Result<void> CommitInstruction::transfer() {
  double squares = 0;
  if (clip_norm > 0)
    for (const FlatRange& slice : slices)
      squares += squares_of(slice);
  // The sum is also the barrier: nobody leaves it before all have their gradients.
  if (world.size() > 1)
    PIPER_CHECK_OK(
        state->endpoint.all_reduce(world, key, &squares, 1, ir::DType::F64, state->wait_until()));
  if (clip_norm > 0) {
    state->grad_norm = std::sqrt(squares);
    state->grad_factor = std::min(1.0, clip_norm / (state->grad_norm + 1e-6));
  }
  state->commit(); // false: something failed or was aborted meanwhile, and the updates are skipped
  return {};
}

Result<void> SendStateInstruction::transfer() {
  return state->endpoint.send(to, key,
                              payload_of(array, source.data, static_cast<size_t>(source.bytes())));
}

Result<void> RecvStateInstruction::transfer() {
  RangeSink sink(target);
  return state->endpoint.recv(from, key, static_cast<size_t>(target.bytes()), sink,
                              state->wait_until());
}

} // namespace piper::executor
