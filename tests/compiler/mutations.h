// Plan sets that are wrong in one place: a good one with one thing changed at random. The verifier
// must reject each, or the change must be shown to do no harm.
#pragma once

#include "ir/plan.h"

#include <optional>
#include <random>
#include <string>
#include <vector>

namespace piper::test {

enum class MutationKind {
  Move,       ///< an instruction to another place of its plan
  Drop,       ///< an instruction
  Double,     ///< an instruction, run again right behind itself or later
  Opcode,     ///< another one of the same shape
  Peer,       ///< the group of an instruction, its own or the other end's
  Device,     ///< a group's members or their order, or two devices' roles
  Bucket,     ///< of a reduction, gather or update, or one of those that commit counts
  Slot,       ///< one that an instruction reads or writes, or the order of two
  Name,       ///< what a slot is said to hold
  Edge,       ///< half of a key
  Microbatch, ///< the other half
  Wait,       ///< an event that is no longer waited for, or no longer recorded
  Free,       ///< dropped, or done by another instruction
  Stream,     ///< of an instruction
  Scale,      ///< of a seed
  Chunks,     ///< a call dropped, added or repeated; chunks joined, cut or swapped
  Layout,     ///< of a group, or its ways; or where a redistribute or a slot's name goes
  Counts,     ///< of rows that go to experts or back: of other rows, swapped, or left out
  Skip,       ///< a redistribute left out: its readers read what it would have moved
  Swap,       ///< two transfers or collectives, in one rank's plan alone
};
const std::vector<MutationKind>& mutation_kinds();
const char* to_string(MutationKind kind);

struct Mutation {
  MutationKind kind;
  std::string what; ///< "role g0: F l0 @1 moved from 4 to 7", "… of device 2 alone: …"
  ir::PlanSet plans;
};

/// None if the plans have nothing that this kind could change, or the change came to nothing.
std::optional<Mutation> mutate(const ir::PlanSet& plans, MutationKind kind,
                               std::mt19937_64& random);

} // namespace piper::test
