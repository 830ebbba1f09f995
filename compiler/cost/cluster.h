// Cluster: the devices and the links that a plan runs on. Plain data with a JSON form.
//
// A cluster is a nest of levels, innermost first: a process holds some devices, a node some
// processes, the cluster all nodes. A message between two devices belongs to the innermost level
// that holds both, and takes that level's latency plus its bytes over what it gets of
//  - the sender's and the receiver's own port at that level, `bandwidth` in each direction;
//  - the uplink of every smaller unit that it leaves or enters, if those have one: a node's network
//    card, shared by its devices.
// What goes through one port or uplink at a time shares it equally.
#pragma once

#include "ir/ids.h"
#include "ir/result.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::compiler {

/// How collectives are run. What each costs is in collectives.h.
enum class Algorithm : uint8_t {
  Direct,       ///< every member sends every other one its part: what our transports do
  Ring,         ///< Patarasuk & Yuan 2009
  Halving,      ///< recursive halving and doubling: Thakur, Rabenseifner & Gropp 2005
  Hierarchical, ///< within the units, then across them
  Auto,         ///< the one that takes least on an idle cluster
};
const char* to_string(Algorithm algorithm); ///< "direct", "ring", …
std::optional<Algorithm> parse_algorithm(std::string_view text);

struct Level {
  std::string name;     ///< "process", "node", …
  uint32_t devices = 0; ///< of a unit: devices [k n, (k + 1) n) are unit k. 0: all; the outermost
  double latency = 0;   ///< seconds
  double bandwidth = 0; ///< bytes per second of one device, in each direction; 0: unlimited
  double uplink = 0;    ///< bytes per second that a unit exchanges with others, in each
                        ///< direction; 0: unlimited
  bool hands_over = false; ///< one address space: a message hands over its tensor, which takes the
                           ///< latency alone, and collectives copy at CostModel::copy, on `cores`
  double cores = 0;        ///< devices of a unit that compute at full speed side by side; 0: all
  bool operator==(const Level&) const = default;
};

struct Cluster {
  std::vector<Level> levels; ///< innermost first; each a multiple of the one before
  double speed = 1;          ///< of a device, against the one that the costs were taken on
  std::map<ir::DeviceIndex, double> speeds; ///< of those that differ
  int64_t memory = 0;                       ///< bytes of a device; 0: not known
  double pool = 0;    ///< bytes per second between a device and the memory that it offloads to;
                      ///< 0: as fast as it copies
  double message = 0; ///< seconds that a member spends on each message of a collective
  Algorithm collectives = Algorithm::Direct;

  double speed_of(ir::DeviceIndex device) const;
  /// The unit of a level that holds the device.
  uint32_t unit(size_t level, ir::DeviceIndex device) const;
  /// The innermost level that holds both.
  size_t level_between(ir::DeviceIndex a, ir::DeviceIndex b) const;

  std::string to_json() const;
  /// Reads the object, or the one at its key "cluster" if it has a key "calls" (a cost file); no
  /// cluster if that has none. Refuses with line, column and key.
  static Result<std::optional<Cluster>> parse(std::string_view json, std::string file = {});
  bool operator==(const Cluster&) const = default;
};

/// Where nothing has been declared: nodes of 8 devices, 300 GB/s within a node and 50 GB/s a device
/// between them, collectives by whatever is fastest.
Cluster declared_cluster();

} // namespace piper::compiler
