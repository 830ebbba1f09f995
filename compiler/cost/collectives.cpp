#include "compiler/cost/collectives.h"

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>

namespace piper::compiler {

using ir::DeviceIndex;

namespace {

using Group = std::span<const DeviceIndex>;

/// Fills in what the members of a phase send each other.
class PhaseBuilder {
public:
  PhaseBuilder(const Cluster& cluster, size_t members) : cluster_(cluster) {
    phase_.members.resize(members);
  }

  void out(size_t rank, size_t level, double bytes) { at(rank, level).out += bytes; }
  void in(size_t rank, size_t level, double bytes) { at(rank, level).in += bytes; }
  void send(Group group, size_t from, size_t to, double bytes) {
    const size_t level = cluster_.level_between(group[from], group[to]);
    out(from, level, bytes);
    in(to, level, bytes);
  }
  /// `steps` messages of each member, one after the other.
  Phase finish(double steps, double added) {
    double latency = 0; // all members wait for the slowest
    for (auto& uses : phase_.members) {
      std::sort(uses.begin(), uses.end(),
                [](const PortUse& a, const PortUse& b) { return a.level < b.level; });
      if (!uses.empty())
        latency = std::max(latency, cluster_.levels[uses.back().level].latency);
    }
    phase_.latency = steps * (latency + cluster_.message);
    phase_.added = added;
    return std::move(phase_);
  }

private:
  PortUse& at(size_t rank, size_t level) {
    auto& uses = phase_.members[rank];
    auto found = std::find_if(uses.begin(), uses.end(),
                              [&](const PortUse& use) { return use.level == level; });
    return found != uses.end() ? *found : uses.emplace_back(PortUse{level});
  }

  const Cluster& cluster_;
  Phase phase_;
};

// Each of these is a reduce-scatter of one byte, or with `added` 0 an all-gather.

Phase direct(const Cluster& cluster, Group group, double added) {
  const size_t n = group.size();
  PhaseBuilder phase(cluster, n);
  std::vector<size_t> inside(n, 1); // members in the unit that the level before has
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    std::unordered_map<uint32_t, size_t> members;
    for (DeviceIndex device : group)
      ++members[cluster.unit(level, device)];
    for (size_t rank = 0; rank < n; ++rank) {
      const size_t here = members[cluster.unit(level, group[rank])];
      const double bytes = static_cast<double>(here - inside[rank]) / static_cast<double>(n);
      if (here > inside[rank]) {
        phase.out(rank, level, bytes);
        phase.in(rank, level, bytes);
      }
      inside[rank] = here;
    }
  }
  Phase done = phase.finish(1, added);
  done.latency += static_cast<double>(n - 2) * cluster.message; // all are under way at once
  return done;
}

Phase ring(const Cluster& cluster, Group group, double added) {
  const size_t n = group.size();
  const auto steps = static_cast<double>(n - 1);
  PhaseBuilder phase(cluster, n);
  for (size_t rank = 0; rank < n; ++rank)
    phase.send(group, rank, (rank + 1) % n, steps / static_cast<double>(n));
  return phase.finish(steps, added);
}

std::vector<Phase> halving(const Cluster& cluster, Group group, bool reduces) {
  std::vector<Phase> phases;
  double part = 0.5;
  for (size_t distance = group.size() / 2; distance > 0; distance /= 2, part /= 2) {
    PhaseBuilder phase(cluster, group.size());
    for (size_t rank = 0; rank < group.size(); ++rank)
      phase.send(group, rank, rank ^ distance, part);
    phases.push_back(phase.finish(1, reduces ? part : 0));
  }
  return phases;
}

/// Ranks by unit of the innermost level at which several members share a unit, but not all;
/// empty if there is none, or the units hold different numbers.
std::vector<std::vector<size_t>> even_units(const Cluster& cluster, Group group) {
  for (size_t level = 0; level + 1 < cluster.levels.size(); ++level) {
    std::map<uint32_t, std::vector<size_t>> units;
    for (size_t rank = 0; rank < group.size(); ++rank)
      units[cluster.unit(level, group[rank])].push_back(rank);
    if (units.size() == group.size())
      continue;
    std::vector<std::vector<size_t>> ranks;
    for (auto& [unit, list] : units)
      ranks.push_back(std::move(list));
    const bool even = std::all_of(ranks.begin(), ranks.end(), [&](const auto& list) {
      return list.size() == ranks.front().size();
    });
    if (ranks.size() > 1 && even)
      return ranks;
    break;
  }
  return {};
}

std::vector<Phase> hierarchical(const Cluster& cluster, Group group,
                                const std::vector<std::vector<size_t>>& units, bool reduces) {
  const size_t inside = units.front().size(), across = units.size();
  const auto k = static_cast<double>(inside), u = static_cast<double>(across);
  PhaseBuilder within(cluster, group.size()), between(cluster, group.size());
  for (size_t unit = 0; unit < across; ++unit)
    for (size_t i = 0; i < inside; ++i) {
      within.send(group, units[unit][i], units[unit][(i + 1) % inside], (k - 1) / k);
      between.send(group, units[unit][i], units[(unit + 1) % across][i], (u - 1) / u / k);
    }
  std::vector<Phase> phases;
  phases.push_back(within.finish(k - 1, reduces ? (k - 1) / k : 0));
  phases.push_back(between.finish(u - 1, reduces ? (u - 1) / u / k : 0));
  return phases;
}

/// The phases of a reduce-scatter, or those of an all-gather in reverse.
std::vector<Phase> scatter(const Cluster& cluster, Algorithm& algorithm, Group group,
                           bool reduces) {
  const auto n = static_cast<double>(group.size());
  const double added = reduces ? (n - 1) / n : 0;
  if (algorithm == Algorithm::Direct)
    return {direct(cluster, group, added)};
  if (algorithm == Algorithm::Halving && std::has_single_bit(group.size()))
    return halving(cluster, group, reduces);
  if (algorithm == Algorithm::Hierarchical)
    if (const auto units = even_units(cluster, group); !units.empty())
      return hierarchical(cluster, group, units, reduces);
  algorithm = Algorithm::Ring;
  return {ring(cluster, group, added)};
}

} // namespace

double Collective::sent(size_t rank) const {
  double bytes = 0;
  for (const Phase& phase : phases)
    for (const PortUse& use : phase.members[rank])
      bytes += use.out;
  return bytes;
}

double Collective::seconds(const Cluster& cluster, double bytes, double add) const {
  double total = 0;
  for (const Phase& phase : phases) {
    double slowest = 0;
    for (const auto& uses : phase.members)
      for (const PortUse& use : uses)
        if (const double bandwidth = cluster.levels[use.level].bandwidth; bandwidth > 0)
          slowest = std::max(slowest, std::max(use.out, use.in) * bytes / bandwidth);
    total += phase.latency + phase.added * bytes * add + slowest;
  }
  return total;
}

Collective plan_collective(const Cluster& cluster, CollectiveKind kind, Algorithm algorithm,
                           Group group, double bytes, double add) {
  Collective collective{algorithm, {}};
  if (group.size() < 2)
    return collective;
  if (kind == CollectiveKind::AllToAll)
    return {Algorithm::Direct, {direct(cluster, group, 0)}};
  if (algorithm == Algorithm::Auto) {
    Collective best;
    for (Algorithm each :
         {Algorithm::Direct, Algorithm::Ring, Algorithm::Halving, Algorithm::Hierarchical}) {
      Collective one = plan_collective(cluster, kind, each, group);
      if (best.phases.empty() ||
          one.seconds(cluster, bytes, add) < best.seconds(cluster, bytes, add))
        best = std::move(one);
    }
    return best;
  }
  auto append = [&](bool reduces) {
    std::vector<Phase> phases = scatter(cluster, collective.algorithm, group, reduces);
    if (!reduces)
      std::reverse(phases.begin(), phases.end());
    for (Phase& phase : phases)
      collective.phases.push_back(std::move(phase));
  };
  if (kind != CollectiveKind::AllGather)
    append(true);
  if (kind != CollectiveKind::ReduceScatter)
    append(false);
  return collective;
}

} // namespace piper::compiler
