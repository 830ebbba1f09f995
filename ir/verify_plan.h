// Internal to ir/: the two halves of verify(PlanSet).
#pragma once

#include "ir/plan.h"

#include <fmt/format.h>

#include <string>

namespace piper::ir {

/// Of one role alone: slots, events, chunks, buckets.
Result<void> verify_role(const PlanSet& set, RoleId role, const ModelSpec& model);
/// Of the devices together: sends and receives pair up in order, and all of them end.
Result<void> verify_transfers(const PlanSet& set, const ModelSpec& model);

/// Error `message` about an instruction of a role.
inline Error wrong_instruction(const PlanSet& set, RoleId role, const Instruction& instruction,
                               const ModelSpec& model, std::string message) {
  std::string where =
      fmt::format("role {}, {}", set.roles[role.value].name, set.name(role, instruction, &model));
  if (instruction.directive >= 0 &&
      static_cast<size_t>(instruction.directive) < set.directives.size())
    where += ", " + set.directives[static_cast<size_t>(instruction.directive)];
  return internal_error(std::move(message), std::move(where));
}

inline bool is_collective(Opcode op) {
  return op == Opcode::AllReduce || op == Opcode::ReduceScatter || op == Opcode::AllGather ||
         op == Opcode::Gather || op == Opcode::Commit;
}
inline bool is_transfer(Opcode op) {
  return op == Opcode::Send || op == Opcode::Recv || op == Opcode::SendState ||
         op == Opcode::RecvState;
}
inline bool is_sending(Opcode op) {
  return op == Opcode::Send || op == Opcode::SendState;
}

} // namespace piper::ir
