// What the instructions of a role allocate and who holds it, as the executor does: what the bound
// of a device's memory and the simulator's count of it rest on.
#pragma once

#include "ir/plan.h"

namespace piper::ir {

/// A piece of memory: from the start of one instruction to the end of the last of some.
struct Storage {
  enum class Kind : uint8_t {
    Values,
    Saved,  ///< for later passes
    Window, ///< whole parameters or gradients of a sharded bucket
    Working
  } kind = Kind::Values;
  int64_t bytes = 0; ///< of working memory also negative: see below
  uint32_t made = 0; ///< by this instruction
  struct Drop {
    uint32_t instruction = 0;
    bool delivery = false; ///< a Send: when its message has been received
    bool operator==(const Drop&) const = default;
  };
  std::vector<Drop> drops; ///< all of them must have happened
};

/// How tokens spread over the ranks of their experts, which is for the data to say.
enum class Routing : uint8_t { Even, Any };

/// The storages of a role. A storage that several slots share, such as an activation that a chunk
/// keeps, is there once. Working memory of an instruction is how far it goes beyond what there was
/// before and the storages that it makes: it lets go of what its chunks saved as it goes. With
/// `Any` routing each rank is taken to get all the rows that its block has.
std::vector<Storage> storages_of(const PlanSet& plans, const ModelSpec& model, const Plan& plan,
                                 Routing routing);

/// What a bucket takes of a device at all times.
struct StateBytes {
  int64_t params = 0, gradients = 0, moments = 0;
  int64_t sum() const { return params + gradients + moments; }
};
/// Of a member of its group; `kinds`: the arrays that the optimizer keeps.
StateBytes state_of(const Bucket& bucket, const std::vector<StateKind>& kinds);
/// Of a member of a group that mirrors it.
int64_t mirror_of(const Bucket& bucket, const std::vector<StateKind>& kinds);

} // namespace piper::ir
