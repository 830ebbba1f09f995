#include "ir/footprint.h"

namespace piper::ir {

namespace {

/// What an object has on the heap, beside itself. A class, so that all of it see each other.
struct Heap {
  static size_t of(const std::string& text) {
    return text.capacity() > std::string().capacity() ? text.capacity() + 1 : 0;
  }
  template <class T> static size_t of(const std::vector<T>& list) {
    size_t bytes = list.capacity() * sizeof(T);
    if constexpr (requires(const T& each) { of(each); })
      for (const T& each : list)
        bytes += of(each);
    return bytes;
  }

  static size_t of(const TensorType& type) { return of(type.dims); }
  static size_t of(const Tag& tag) { return of(tag.name); }
  static size_t of(const Group& group) { return of(group.devices); }
  static size_t of(const Bucket& its) {
    return of(its.name) + of(its.params) + of(its.offsets) + of(its.mirrors);
  }
  static size_t of(const Node& node) {
    return of(node.inputs) + of(node.outputs) + of(node.after) + of(node.chunks) + of(node.stream);
  }
  static size_t of(const RegionPtr& region) {
    return sizeof(Region) + of(region->name()) + of(region->nodes());
  }

  static size_t of(const Role& role) { return of(role.name) + of(role.groups); }
  static size_t of(const Slot& slot) { return of(slot.type); }
  static size_t of(const Instruction& each) {
    return of(each.chunks) + of(each.inputs) + of(each.outputs) + of(each.frees) +
           of(each.buckets) + of(each.waits);
  }
  static size_t of(const Plan& plan) {
    return of(plan.streams) + of(plan.slots) + of(plan.instructions);
  }
};

} // namespace

size_t bytes_of(const Graph& graph) {
  return sizeof(Graph) + Heap::of(graph.microbatch_tag) + Heap::of(graph.tags) +
         Heap::of(graph.groups) + Heap::of(graph.buckets) + Heap::of(graph.regions);
}

size_t bytes_of(const PlanSet& plans) {
  constexpr size_t kTreeNode = 4 * sizeof(void*); // of std::map, beside its entry
  return sizeof(PlanSet) + Heap::of(plans.groups) + Heap::of(plans.buckets) +
         Heap::of(plans.edges) + Heap::of(plans.directives) + Heap::of(plans.roles) +
         Heap::of(plans.plans) +
         plans.devices.size() * (kTreeNode + sizeof(decltype(plans.devices)::value_type));
}

} // namespace piper::ir
