#include "compiler/simulate/fluid.h"

#include <algorithm>

namespace piper::compiler {

uint32_t Fluid::add_resource(double capacity) {
  resources_.push_back({capacity, 0, {}});
  return static_cast<uint32_t>(resources_.size() - 1);
}

/// Seconds that the whole flow takes with its present shares.
double Fluid::pace(const Flow& flow) const {
  double total = flow.seconds;
  for (const Use& use : flow.uses) {
    const Resource& resource = resources_[use.resource];
    total = std::max(total, use.amount / (resource.capacity * (use.streams / resource.streams)));
  }
  return total;
}

void Fluid::reschedule(double now, uint32_t index) {
  Flow& flow = flows_[index];
  const double total = pace(flow);
  if (total == flow.total)
    return;
  if (flow.total > 0)
    flow.left = std::max(0.0, flow.left - (now - flow.since) / flow.total);
  flow.since = now;
  flow.total = total;
  ends_.push({now + flow.left * total, entries_++, index, ++flow.version});
}

void Fluid::reschedule_neighbours(double now, const Flow& changed, uint32_t except) {
  std::vector<uint32_t> touched;
  for (const Use& use : changed.uses)
    for (uint32_t other : resources_[use.resource].flows)
      if (other != except)
        touched.push_back(other);
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  for (uint32_t other : touched)
    reschedule(now, other);
}

void Fluid::start(double now, double seconds, std::vector<Use> uses, uint32_t tag) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<uint32_t>(flows_.size()));
    flows_.emplace_back();
  }
  const uint32_t index = unused_.back();
  unused_.pop_back();
  Flow& flow = flows_[index];
  const uint32_t version = flow.version; // entries of earlier flows stay out of date
  flow = {.seconds = seconds, .uses = std::move(uses), .tag = tag, .since = now, .active = true};
  for (const Use& use : flow.uses) {
    resources_[use.resource].streams += use.streams;
    resources_[use.resource].flows.push_back(index);
  }
  flow.total = pace(flow);
  flow.version = version + 1;
  ends_.push({now + flow.total, entries_++, index, flow.version});
  reschedule_neighbours(now, flow, index);
}

std::optional<double> Fluid::next_end() {
  while (!ends_.empty()) {
    const End& end = ends_.top();
    if (flows_[end.flow].active && flows_[end.flow].version == end.version)
      return end.time;
    ends_.pop();
  }
  return std::nullopt;
}

uint32_t Fluid::finish_next() {
  const End end = ends_.top();
  ends_.pop();
  Flow& flow = flows_[end.flow];
  flow.active = false;
  for (const Use& use : flow.uses) {
    Resource& resource = resources_[use.resource];
    std::erase(resource.flows, end.flow);
    resource.streams = resource.flows.empty() ? 0 : resource.streams - use.streams;
  }
  reschedule_neighbours(end.time, flow, end.flow);
  unused_.push_back(end.flow);
  return flow.tag;
}

} // namespace piper::compiler
