// DeviceClasses: which devices of a plan set behave alike, so that one of each class need be
// simulated.
//
// The rule. Two devices are of one class if they have the same role and speed, exchange the same
// messages over links of the same kind with devices of one class, take the same part in each
// collective, whose members are of the same classes, and are in units (nodes, say, where those
// share an uplink or cores) that hold as many devices of each class. The classes are the coarsest
// ones for which this is true, found by refinement from the roles (as states of an automaton are:
// Moore 1956). By induction over the events, devices of a class do everything at the same time; so
// a simulation of one device a class, which charges shared links for all that the unit holds, is
// that of all devices. Where devices differ (a slow one, say) the classes around it are split, down
// to one device each if need be.
#pragma once

#include "compiler/cost/cluster.h"
#include "compiler/cost/collectives.h"
#include "ir/plan.h"

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace piper::compiler {

/// The collectives of a plan set, planned once each.
class CollectivePlans {
public:
  CollectivePlans(const ir::PlanSet& plans, const Cluster& cluster, Algorithm algorithm, double add)
      : plans_(plans), cluster_(cluster), algorithm_(algorithm), add_(add) {}

  const Collective& of(CollectiveKind kind, const ir::Team& team, double bytes);

private:
  const ir::PlanSet& plans_;
  const Cluster& cluster_;
  const Algorithm algorithm_;
  const double add_;
  std::map<std::tuple<CollectiveKind, ir::Team, double>, Algorithm> chosen_; ///< of Auto
  std::map<std::tuple<CollectiveKind, ir::Team, Algorithm>, Collective> planned_;
};

/// The kind of a collective instruction; none of a Redistribute that sends nothing.
std::optional<CollectiveKind> collective_kind(const ir::PlanSet& plans,
                                              const ir::Instruction& instruction);
/// The bytes of the whole array that a collective is about. Commit sums one double. An all-to-all
/// is taken for even: each member sends each other one its share.
double collective_bytes(const ir::PlanSet& plans, const ir::Plan& plan,
                        const ir::Instruction& instruction);
/// The bytes of the whole buckets that an instruction is about.
double bucket_bytes(const ir::PlanSet& plans, const ir::Instruction& instruction);
bool is_collective(ir::Opcode op);

/// Ranks of devices in groups, without a search.
class Ranks {
public:
  explicit Ranks(const ir::PlanSet& plans);
  /// The device is a member.
  uint32_t of(ir::GroupId group, ir::DeviceIndex device) const;
  /// The other end of a transfer.
  ir::DeviceIndex peer(ir::DeviceIndex device, const ir::Instruction& transfer) const;

private:
  const ir::PlanSet& plans_;
  std::unordered_map<uint64_t, uint32_t> ranks_;
};

struct DeviceClasses {
  std::vector<ir::DeviceIndex> representative;      ///< of each class, ascending
  std::vector<uint32_t> size;                       ///< devices of each class
  std::unordered_map<ir::DeviceIndex, uint32_t> of; ///< the class of each device
  /// Teams whose members are of the same classes behave alike.
  struct TeamClass {
    uint32_t number = 0;           ///< among all
    std::vector<uint32_t> members; ///< classes, each once
  };
  std::map<ir::Team, TeamClass> team; ///< of each team with a representative
  /// [level][class]: a number for the representative's unit, the same for units that behave alike.
  std::vector<std::vector<uint32_t>> unit;
  /// [level][class]: devices of the class in the representative's unit.
  std::vector<std::vector<uint32_t>> in_unit;
};

/// The coarsest classes; with `all` every device is one of its own.
DeviceClasses classify_devices(const ir::PlanSet& plans, const Cluster& cluster, const Ranks& ranks,
                               CollectivePlans& collectives, bool all);

} // namespace piper::compiler
