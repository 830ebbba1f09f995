#include "tests/compiler/mutations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace piper::test {

using namespace ir;

namespace {

constexpr std::array kNames = {"move",       "drop",   "double", "opcode", "peer",
                               "device",     "bucket", "slot",   "name",   "edge",
                               "microbatch", "wait",   "free",   "stream", "scale",
                               "chunks",     "layout", "counts", "skip",   "swap"};
static_assert(kNames.size() == static_cast<size_t>(MutationKind::Swap) + 1);

/// Makes one change. A method that finds nothing to change leaves `what` empty.
class Mutator {
public:
  Mutator(const PlanSet& plans, std::mt19937_64& random) : set_(plans), random_(random) {
    const size_t first = pick(plans.plans.size());
    role_ = RoleId(first);
    plan_ = &set_.plans[first];
  }

  std::optional<Mutation> run(MutationKind kind) {
    std::string alone;
    if (kind == MutationKind::Swap || pick(4) == 0)
      alone = set_apart();
    const PlanSet before = set_;
    change(kind);
    if (what_.empty() || set_ == before)
      return std::nullopt;
    return Mutation{kind, fmt::format("role {}{}: {}", set_.roles[role_.value].name, alone, what_),
                    std::move(set_)};
  }

private:
  /// Gives one of the role's devices a plan of its own, so that it alone is changed.
  std::string set_apart() {
    std::vector<DeviceIndex> devices;
    for (const auto& [device, role] : set_.devices)
      if (role == role_)
        devices.push_back(device);
    if (devices.size() < 2)
      return "";
    const DeviceIndex device = one_of(devices);
    set_.roles.push_back(Role(set_.roles[role_.value]));
    set_.plans.push_back(Plan(*plan_));
    role_ = RoleId(set_.roles.size() - 1);
    plan_ = &set_.plans.back();
    set_.devices[device] = role_;
    return fmt::format(" of device {} alone", device);
  }

  size_t pick(size_t count) { return static_cast<size_t>(random_() % count); }
  bool flip() { return pick(2) == 0; }
  template <class T> const T& one_of(const std::vector<T>& list) { return list[pick(list.size())]; }

  /// The place of an instruction for which `wanted` holds; none if there is none.
  template <class Wanted> std::optional<size_t> find(Wanted wanted) {
    std::vector<size_t> found;
    for (size_t i = 0; i < plan_->instructions.size(); ++i)
      if (wanted(plan_->instructions[i]))
        found.push_back(i);
    return found.empty() ? std::nullopt : std::optional(one_of(found));
  }
  std::string name(size_t i) const { return set_.name(role_, plan_->instructions[i]); }
  template <class... Args> void say(fmt::format_string<Args...> text, Args&&... args) {
    what_ = fmt::format(text, std::forward<Args>(args)...);
  }

  void change(MutationKind kind) {
    switch (kind) {
    case MutationKind::Move:
      return move();
    case MutationKind::Drop:
      return drop();
    case MutationKind::Double:
      return repeat();
    case MutationKind::Opcode:
      return opcode();
    case MutationKind::Peer:
      return peer();
    case MutationKind::Device:
      return device();
    case MutationKind::Bucket:
      return bucket();
    case MutationKind::Slot:
      return slot();
    case MutationKind::Name:
      return slot_name();
    case MutationKind::Edge:
      return edge();
    case MutationKind::Microbatch:
      return microbatch();
    case MutationKind::Wait:
      return wait();
    case MutationKind::Free:
      return free();
    case MutationKind::Stream:
      return stream();
    case MutationKind::Scale:
      return scale();
    case MutationKind::Chunks:
      return chunks();
    case MutationKind::Layout:
      return layout();
    case MutationKind::Counts:
      return counts();
    case MutationKind::Skip:
      return skip();
    case MutationKind::Swap:
      return swap();
    }
  }

  void move() {
    auto& all = plan_->instructions;
    const size_t from = pick(all.size());
    // Near places are where it may go unnoticed.
    const size_t reach = flip() ? 3 : all.size();
    const size_t to = flip() ? from - std::min(from, 1 + pick(reach))
                             : std::min(all.size() - 1, from + 1 + pick(reach));
    say("{} moved from {} to {}", name(from), from, to);
    Instruction moved = all[from];
    all.erase(all.begin() + static_cast<ptrdiff_t>(from));
    all.insert(all.begin() + static_cast<ptrdiff_t>(to), std::move(moved));
  }
  void drop() {
    const size_t i = pick(plan_->instructions.size());
    say("{} dropped", name(i));
    plan_->instructions.erase(plan_->instructions.begin() + static_cast<ptrdiff_t>(i));
  }
  void repeat() {
    auto& all = plan_->instructions;
    const size_t i = pick(all.size());
    const size_t to = flip() ? i + 1 : i + 1 + pick(all.size() - i);
    Instruction again = all[i];
    // Half of them without what would be refused for being named twice.
    if (flip()) {
      again.records = {};
      again.frees.clear();
    }
    say("{} again at {}{}", name(i), to, again.records || !again.frees.empty() ? "" : ", bare");
    // What is written twice is refused, so give it slots of its own, which others may read.
    if (!again.outputs.empty() && flip()) {
      const bool read = flip();
      for (SlotId& slot : again.outputs) {
        if (!slot)
          continue;
        const SlotId own(plan_->slots.size());
        plan_->slots.push_back(Slot(plan_->slots[slot.value]));
        for (size_t later = read ? to : all.size(); later < all.size(); ++later) {
          auto& inputs = all[later].inputs;
          std::replace(inputs.begin(), inputs.end(), slot, own);
        }
        auto last = std::find_if(all.rbegin(), all.rend(), [&](const Instruction& each) {
          return std::count(each.inputs.begin(), each.inputs.end(), own) > 0;
        });
        (last == all.rend() ? again : *last).frees.push_back(own);
        slot = own;
      }
      what_ += read ? ", and what it makes is read" : ", with slots of its own";
    }
    all.insert(all.begin() + static_cast<ptrdiff_t>(to), std::move(again));
  }
  void opcode() {
    static const std::vector<std::vector<Opcode>> kShapes = {
        {Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather, Opcode::Update,
         Opcode::Gather},
        {Opcode::Release, Opcode::ZeroGrads, Opcode::Update},
        {Opcode::Update, Opcode::UpdateMirror},
        {Opcode::SendMirror, Opcode::RecvMirror},
        {Opcode::Input, Opcode::Seed, Opcode::Recv},
        {Opcode::Offload, Opcode::Fetch},
        {Opcode::Loss, Opcode::Send, Opcode::Redistribute},
        {Opcode::Redistribute, Opcode::Add, Opcode::AllGather},
        {Opcode::Forward, Opcode::Recompute},
        {Opcode::Forward, Opcode::Backward, Opcode::BackwardInput, Opcode::BackwardWeight}};
    const auto& shape = one_of(kShapes);
    auto of_shape = [&](const Instruction& each) {
      return std::find(shape.begin(), shape.end(), each.op) != shape.end();
    };
    if (auto i = find(of_shape)) {
      const Opcode now = one_of(shape);
      say("{} becomes {}", name(*i), ir::to_string(now));
      plan_->instructions[*i].op = now;
    }
  }
  void peer() {
    const bool own = flip();
    auto i = find([&](const Instruction& each) { return own ? each.self : each.group; });
    if (!i)
      return;
    const GroupId group(pick(set_.groups.size()));
    say("{} {} g{}", name(*i), own ? "as" : "over", group.value);
    (own ? plan_->instructions[*i].self : plan_->instructions[*i].group) = group;
  }
  void device() {
    auto& devices = set_.groups[pick(set_.groups.size())].devices;
    if (devices.empty())
      return;
    switch (pick(4)) {
    case 0: {
      const size_t a = pick(devices.size()), b = pick(devices.size());
      say("devices {} and {} of a group swapped", devices[a], devices[b]);
      std::swap(devices[a], devices[b]);
      return;
    }
    case 1: {
      const size_t a = pick(devices.size());
      say("device {} of a group dropped", devices[a]);
      devices.erase(devices.begin() + static_cast<ptrdiff_t>(a));
      return;
    }
    case 2: {
      const DeviceIndex other = static_cast<DeviceIndex>(pick(set_.devices.size() + 1));
      const size_t a = pick(devices.size());
      say("device {} of a group becomes {}", devices[a], other);
      devices[a] = other;
      return;
    }
    default: {
      auto a = set_.devices.begin(), b = a;
      std::advance(a, pick(set_.devices.size()));
      std::advance(b, pick(set_.devices.size()));
      say("devices {} and {} change roles", a->first, b->first);
      std::swap(a->second, b->second);
    }
    }
  }
  void bucket() {
    auto i = find([](const Instruction& each) { return !each.buckets.empty(); });
    if (!i)
      return;
    auto& buckets = plan_->instructions[*i].buckets;
    const size_t at = pick(buckets.size());
    const std::string before = name(*i);
    switch (pick(3)) {
    case 0:
      buckets[at] = BucketId(pick(set_.buckets.size()));
      return say("{} works on bucket {}", before, buckets[at].value);
    case 1:
      buckets.push_back(BucketId(pick(set_.buckets.size())));
      return say("{} works on bucket {} too", before, buckets.back().value);
    default:
      buckets.erase(buckets.begin() + static_cast<ptrdiff_t>(at));
      return say("{} works on a bucket less", before);
    }
  }
  void slot() {
    const bool reads = flip();
    auto list_of = [&](Instruction& each) -> std::vector<SlotId>& {
      return reads ? each.inputs : each.outputs;
    };
    auto i = find([&](Instruction& each) { return !list_of(each).empty(); });
    if (!i || plan_->slots.empty())
      return;
    auto& list = list_of(plan_->instructions[*i]);
    const size_t a = pick(list.size()), b = pick(list.size());
    if (list.size() > 1 && flip()) {
      say("{} has slots {} and {} of its {} swapped", name(*i), a, b, reads ? "inputs" : "outputs");
      std::swap(list[a], list[b]);
      return;
    }
    // One of the same kind is the likelier to go unnoticed.
    std::vector<uint32_t> slots;
    for (uint32_t s = 0; s < plan_->slots.size(); ++s)
      if (!list[a] || plan_->slots[s].value.kind == plan_->slots[list[a].value].value.kind)
        slots.push_back(s);
    const SlotId now(one_of(slots));
    say("{} {} s{} for s{}", name(*i), reads ? "reads" : "writes", now.value, list[a].value);
    list[a] = now;
  }
  void slot_name() {
    if (plan_->slots.empty())
      return;
    const size_t s = pick(plan_->slots.size());
    ValueRef& ref = plan_->slots[s].value;
    const auto& other = one_of(plan_->slots).value;
    switch (pick(5)) {
    case 0:
      ref.kind = other.kind;
      break;
    case 1:
      ref.subject = other.subject;
      break;
    case 2:
      ref.microbatch = other.microbatch;
      break;
    case 3:
      ref.at = GroupId(pick(set_.groups.size()));
      break;
    default:
      ref = other;
    }
    say("slot s{} has another name", s);
  }
  void edge() {
    auto i = find([](const Instruction& each) { return each.edge; });
    if (!i)
      return;
    const EdgeId now(pick(set_.edges.size()));
    say("{} over edge {}", name(*i), now.value);
    plan_->instructions[*i].edge = now;
  }
  void microbatch() {
    const size_t i = pick(plan_->instructions.size());
    const auto now = static_cast<int32_t>(pick(static_cast<size_t>(set_.microbatches) + 1)) - 1;
    say("{} is of microbatch {}", name(i), now);
    plan_->instructions[i].microbatch = now;
  }
  void wait() {
    const bool records = pick(4) == 0;
    auto i = find([&](const Instruction& each) {
      return records ? each.records.valid() : !each.waits.empty();
    });
    if (!i)
      return;
    Instruction& each = plan_->instructions[*i];
    if (records) {
      say("{} no longer records e{}", name(*i), each.records.value);
      each.records = {};
      return;
    }
    const size_t w = pick(each.waits.size());
    say("{} no longer waits for e{}", name(*i), each.waits[w].value);
    each.waits.erase(each.waits.begin() + static_cast<ptrdiff_t>(w));
  }
  void free() {
    auto i = find([](const Instruction& each) { return !each.frees.empty(); });
    if (!i)
      return;
    auto& frees = plan_->instructions[*i].frees;
    const size_t f = pick(frees.size());
    const SlotId slot = frees[f];
    frees.erase(frees.begin() + static_cast<ptrdiff_t>(f));
    if (pick(4) == 0)
      return say("{} no longer frees s{}", name(*i), slot.value);
    const size_t to = flip() ? pick(plan_->instructions.size())
                             : std::min(plan_->instructions.size() - 1, *i + 1 + pick(3));
    say("s{} is freed by {} at {} instead of {}", slot.value, name(to), to, name(*i));
    plan_->instructions[to].frees.push_back(slot);
  }
  void stream() {
    const size_t i = pick(plan_->instructions.size());
    if (plan_->streams.size() < 2 || pick(4) == 0)
      plan_->streams.push_back("other");
    const auto now = static_cast<uint32_t>(pick(plan_->streams.size()));
    if (plan_->instructions[i].stream == now)
      return;
    say("{} on stream {}", name(i), plan_->streams[now]);
    plan_->instructions[i].stream = now;
  }
  void scale() {
    auto i = find([](const Instruction& each) { return each.op == Opcode::Seed; });
    if (!i)
      return;
    static const std::vector<double> kFactors = {0, -1, 0.5, 2, 3, 1 + 1e-6};
    double& scale = plan_->instructions[*i].scale;
    scale *= one_of(kFactors);
    say("{} by {}", name(*i), scale);
  }
  void chunks() {
    auto i = find([](const Instruction& each) { return !each.chunks.empty(); });
    if (!i)
      return;
    const std::string before = name(*i);
    auto& chunks = plan_->instructions[*i].chunks;
    const size_t c = pick(chunks.size()), other = pick(chunks.size());
    auto& calls = chunks[c];
    if (calls.empty())
      return;
    const size_t k = pick(calls.size());
    switch (pick(6)) {
    case 0:
      calls.erase(calls.begin() + static_cast<ptrdiff_t>(k));
      return say("{} without call {} of chunk {}", before, k, c);
    case 1:
      calls.insert(calls.begin() + static_cast<ptrdiff_t>(k), calls[k]);
      return say("{} with call {} of chunk {} twice", before, k, c);
    case 2:
      calls[k] = CallId(calls[k].value ^ 1);
      return say("{} with another call {} in chunk {}", before, k, c);
    case 3:
      std::swap(chunks[c], chunks[other]);
      return say("{} with chunks {} and {} swapped", before, c, other);
    case 4: {
      if (c + 1 >= chunks.size())
        return;
      calls.insert(calls.end(), chunks[c + 1].begin(), chunks[c + 1].end());
      chunks.erase(chunks.begin() + static_cast<ptrdiff_t>(c) + 1);
      return say("{} with chunks {} and {} joined", before, c, c + 1);
    }
    default: {
      if (k == 0)
        return;
      std::vector<CallId> tail(calls.begin() + static_cast<ptrdiff_t>(k), calls.end());
      calls.resize(k);
      chunks.insert(chunks.begin() + static_cast<ptrdiff_t>(c) + 1, std::move(tail));
      return say("{} with chunk {} cut", before, c);
    }
    }
  }

  /// Another group of the same devices.
  GroupId beside(GroupId group) {
    std::vector<GroupId> others;
    for (size_t g = 0; g < set_.groups.size(); ++g)
      if (GroupId(g) != group && set_.groups[g].devices == set_.groups[group.value].devices)
        others.push_back(GroupId(g));
    return others.empty() ? GroupId() : one_of(others);
  }
  static bool is_move(const Instruction& each) { return each.op == Opcode::Redistribute; }

  void layout() {
    const size_t g = pick(set_.groups.size());
    Group& group = set_.groups[g];
    switch (pick(7)) {
    case 0:
      group.layout = static_cast<Layout>(pick(static_cast<size_t>(Layout::Experts) + 1));
      return say("g{} is {}", g, ir::to_string(group.layout));
    case 3:
      group.replicated = !group.replicated;
      return say("g{} is{} replicated", g, group.replicated ? "" : " not");
    case 1: {
      std::vector<uint32_t> divisors;
      for (uint32_t ways = 1; ways <= group.size(); ++ways)
        if (group.size() % ways == 0)
          divisors.push_back(ways);
      group.ways = one_of(divisors);
      return say("g{} has {} ways", g, group.ways);
    }
    case 2: {
      if (plan_->slots.empty())
        return;
      const size_t s = pick(plan_->slots.size());
      if (const GroupId now = beside(plan_->slots[s].value.at)) {
        plan_->slots[s].value.at = now;
        say("slot s{} is on g{}", s, now.value);
      }
      return;
    }
    default: {
      auto i = find(is_move);
      if (!i)
        return;
      Instruction& each = plan_->instructions[*i];
      const bool from = flip();
      GroupId& end = from ? each.group : each.self;
      const GroupId now = beside(end);
      if (!now || each.inputs.empty() || each.outputs.empty())
        return;
      say("{} {} g{} for g{}", name(*i), from ? "from" : "to", now.value, end.value);
      end = now;
      if (flip()) { // and says so
        plan_->slots[(from ? each.inputs : each.outputs)[0].value].value.at = now;
        what_ += ", and its slot too";
      }
    }
    }
  }

  void counts() {
    auto i = find([](const Instruction& each) { return is_move(each) && each.inputs.size() == 3; });
    if (!i)
      return;
    const std::string before = name(*i);
    auto& inputs = plan_->instructions[*i].inputs;
    switch (pick(4)) {
    case 0:
      std::swap(inputs[1], inputs[2]);
      return say("{} with the counts of its ends swapped", before);
    case 1:
      inputs.resize(1);
      return say("{} without counts", before);
    default: {
      // Those of another microbatch, at one end or both.
      auto other = find([&](const Instruction& each) {
        return is_move(each) && each.inputs.size() == 3 &&
               each.microbatch != plan_->instructions[*i].microbatch;
      });
      if (!other)
        return;
      const Instruction& theirs = plan_->instructions[*other];
      const bool same_way = theirs.group == plan_->instructions[*i].group;
      const size_t ends = pick(3);
      if (ends != 0)
        inputs[1] = theirs.inputs[same_way ? 1 : 2];
      if (ends != 1)
        inputs[2] = theirs.inputs[same_way ? 2 : 1];
      say("{} by counts of {}", before, name(*other));
    }
    }
  }

  void skip() {
    auto i = find([](const Instruction& each) {
      return is_move(each) && !each.inputs.empty() && !each.outputs.empty();
    });
    if (!i)
      return;
    say("{} skipped", name(*i));
    auto& all = plan_->instructions;
    const Instruction gone = all[*i];
    all.erase(all.begin() + static_cast<ptrdiff_t>(*i));
    const SlotId source = gone.inputs[0], target = gone.outputs[0];
    auto writer = std::find_if(all.begin(), all.end(), [&](const Instruction& each) {
      return std::count(each.outputs.begin(), each.outputs.end(), source) > 0;
    });
    if (writer != all.end() && gone.records && !writer->records)
      writer->records = EventId(plan_->events++);
    const bool freed = std::count(gone.frees.begin(), gone.frees.end(), source) > 0;
    for (Instruction& each : all) {
      std::replace(each.inputs.begin(), each.inputs.end(), target, source);
      if (freed)
        std::replace(each.frees.begin(), each.frees.end(), target, source);
      else
        std::erase(each.frees, target);
      if (gone.records && writer != all.end())
        std::replace(each.waits.begin(), each.waits.end(), gone.records, writer->records);
    }
    if (flip()) { // and the slot is said to be where it would have been moved
      plan_->slots[source.value].value.at = gone.self;
      what_ += ", and its slot says otherwise";
    }
  }

  void swap() {
    auto meets_others = [](const Instruction& each) { return each.edge.valid(); };
    const auto a = find(meets_others);
    if (!a)
      return;
    // Most often the next of its kind: near places are where it may go unnoticed.
    const bool near = !flip(), same = flip();
    std::vector<size_t> others;
    for (size_t b = *a + 1; b < plan_->instructions.size() && (others.empty() || !near); ++b)
      if (meets_others(plan_->instructions[b]) &&
          (!same || plan_->instructions[b].op == plan_->instructions[*a].op))
        others.push_back(b);
    if (others.empty())
      return;
    const size_t b = one_of(others);
    say("{} and {} change places", name(*a), name(b));
    std::swap(plan_->instructions[*a], plan_->instructions[b]);
  }

  PlanSet set_;
  std::mt19937_64& random_;
  RoleId role_;
  Plan* plan_ = nullptr; ///< that is changed
  std::string what_;
};

} // namespace

const std::vector<MutationKind>& mutation_kinds() {
  static const std::vector<MutationKind> kinds = [] {
    std::vector<MutationKind> all;
    for (size_t k = 0; k < kNames.size(); ++k)
      all.push_back(static_cast<MutationKind>(k));
    return all;
  }();
  return kinds;
}

const char* to_string(MutationKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

std::optional<Mutation> mutate(const PlanSet& plans, MutationKind kind, std::mt19937_64& random) {
  return Mutator(plans, random).run(kind);
}

} // namespace piper::test
