// Fluid: work that shares what it runs on. A flow is a piece of work that asks for amounts of some
// resources (bytes of a link, seconds of a set of cores); a resource is shared equally by the
// streams that are on it, and a flow goes at the pace of the resource that holds it up most.
#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

namespace piper::compiler {

class Fluid {
public:
  struct Use {
    uint32_t resource = 0;
    double amount = 0;  ///< of all its streams together
    double streams = 1; ///< the shares that it counts for
  };

  /// `capacity` a second.
  uint32_t add_resource(double capacity);

  /// Starts a flow that takes at least `seconds`, whatever it gets. `tag` comes back with its end.
  void start(double now, double seconds, std::vector<Use> uses, uint32_t tag);

  /// When the next flow ends; none if nothing is under way.
  std::optional<double> next_end();
  /// Ends that flow; its tag. Times must not go back.
  uint32_t finish_next();

private:
  struct Flow {
    double seconds = 0;
    std::vector<Use> uses;
    uint32_t tag = 0;
    double left = 1;      ///< of 1
    double total = 0;     ///< seconds that all of it would take at the present pace
    double since = 0;     ///< when the present pace began
    uint32_t version = 0; ///< of its entry in `ends_`
    bool active = false;
  };
  struct Resource {
    double capacity = 0;
    double streams = 0;
    std::vector<uint32_t> flows;
  };
  struct End {
    double time;
    uint64_t order; ///< of equal times, the earlier entry first
    uint32_t flow, version;
    bool operator>(const End& other) const {
      return std::pair(time, order) > std::pair(other.time, other.order);
    }
  };

  double pace(const Flow& flow) const;
  void reschedule(double now, uint32_t flow);
  void reschedule_neighbours(double now, const Flow& changed, uint32_t except);

  std::vector<Flow> flows_;
  std::vector<uint32_t> unused_; ///< entries of flows_
  std::vector<Resource> resources_;
  std::priority_queue<End, std::vector<End>, std::greater<End>> ends_;
  uint64_t entries_ = 0;
};

} // namespace piper::compiler
