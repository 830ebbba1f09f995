#include "compiler/pipeline.h"

#include "compiler/passes/add_backward.h"
#include "compiler/passes/assign_buckets.h"
#include "compiler/passes/assign_streams.h"
#include "compiler/passes/fuse.h"
#include "compiler/passes/insert_communication.h"
#include "compiler/passes/lower_model.h"
#include "compiler/passes/mirror.h"
#include "compiler/passes/offload.h"
#include "compiler/passes/order.h"
#include "compiler/passes/overlap.h"
#include "compiler/passes/place.h"
#include "compiler/passes/recompute.h"
#include "compiler/passes/shard_state.h"
#include "compiler/passes/split_backward.h"
#include "compiler/passes/split_batch.h"

namespace piper::compiler {

std::span<const NamedPass> pipeline_passes() {
  static constexpr NamedPass passes[] = {
      {"lower_model", lower_model, false},
      {"add_backward", add_backward, false},
      {"split_batch", split_batch, false},
      {"split_backward", split_backward, false},
      {"place", place, false},
      {"assign_buckets", assign_buckets, false},
      {"order", order, true},
      {"overlap", overlap, false},
      {"fuse", fuse, true},
      {"recompute", recompute, false},
      {"shard_state", shard_state, false},
      {"insert_communication", insert_communication, false},
      {"offload", offload, false},
      {"mirror", mirror, false},
      {"assign_streams", assign_streams, true},
  };
  return passes;
}

} // namespace piper::compiler
