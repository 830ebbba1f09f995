#include "ir/worst_moment.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>

#include <algorithm>
#include <limits>
#include <map>

namespace piper::ir {

namespace {

constexpr uint32_t kNone = Id<void>::kNone;

/// Of each lane of a device, how many of its entries have ended. Lanes are the device's streams,
/// whose entries are instructions, and, for each device that it sends to, the deliveries there.
using Clock = std::vector<uint32_t>;

void join(Clock& to, const Clock& from) {
  for (size_t lane = 0; lane < to.size(); ++lane)
    to[lane] = std::max(to[lane], from[lane]);
}

/// What comes before what on a device, whichever way it leads there.
class EventOrder {
public:
  struct Entry {
    uint32_t lane = kNone, position = 0;
  };

  EventOrder(const JointPlan& joint, const std::vector<uint32_t>& order, size_t device)
      : joint_(joint), device_(device), plan_(joint.plan(device)), entries_(joint.partner.size()),
        lanes_(plan_.streams.size()) {
    std::map<size_t, uint32_t> channels; // receiving device -> lane
    for (uint32_t i = 0; i < plan_.instructions.size(); ++i) {
      const uint32_t node = joint.first[device] + i;
      enter(node, plan_.instructions[i].stream, i);
      if (plan_.instructions[i].op != Opcode::Send)
        continue;
      const uint32_t recv = joint.partner[node];
      auto [channel, fresh] =
          channels.try_emplace(joint.index_of(recv), static_cast<uint32_t>(lanes_.size()));
      if (fresh)
        lanes_.emplace_back();
      enter(recv, channel->second, i);
    }
    starts_.resize(plan_.instructions.size());
    for (const auto& lane : lanes_)
      ends_.emplace_back(lane.size());
    sweep(order);
  }

  /// The end of an instruction, or of the delivery of what it sends.
  const Entry& entry(uint32_t instruction, bool delivery) const {
    const uint32_t node = joint_.first[device_] + instruction;
    return entries_[delivery ? joint_.partner[node] : node];
  }
  /// Of each entry of each lane, the instruction that it is of.
  const std::vector<std::vector<uint32_t>>& lanes() const { return lanes_; }
  /// What has ended when the instruction starts.
  const Clock& start(uint32_t instruction) const { return starts_[instruction]; }
  /// What has ended when the entry does, without itself.
  const Clock& end(const Entry& entry) const { return ends_[entry.lane][entry.position]; }
  bool ends_before(const Entry& a, const Entry& b) const { return end(b)[a.lane] > a.position; }

private:
  void enter(uint32_t node, uint32_t lane, uint32_t instruction) {
    entries_[node] = {lane, static_cast<uint32_t>(lanes_[lane].size())};
    lanes_[lane].push_back(instruction);
  }

  /// An instruction comes after the one before it on its stream and after the events that it waits
  /// for; a receive ends after its send has started, and a collective after all members have.
  void sweep(const std::vector<uint32_t>& order) {
    std::vector<size_t> streams = {0}, events = {0}; // of each device, its first
    for (size_t d = 0; d < joint_.devices.size(); ++d) {
      streams.push_back(streams.back() + joint_.plan(d).streams.size());
      events.push_back(events.back() + joint_.plan(d).events);
    }
    const Clock zero(lanes_.size());
    std::vector<Clock> at_stream(streams.back(), zero), at_event(events.back(), zero), starts;
    for (size_t done = 0; done < order.size(); done += starts.size()) {
      const size_t length = unit(order, done);
      starts.assign(length, zero);
      for (size_t k = 0; k < length; ++k) {
        const uint32_t node = order[done + k];
        const size_t d = joint_.index_of(node);
        const Instruction& each = joint_.plan(d).instructions[node - joint_.first[d]];
        join(starts[k], at_stream[streams[d] + each.stream]);
        for (EventId event : each.waits)
          join(starts[k], at_event[events[d] + event.value]);
        if (d == device_)
          starts_[node - joint_.first[d]] = starts[k];
      }
      for (size_t k = 0; k < length; ++k) {
        const uint32_t node = order[done + k];
        const size_t d = joint_.index_of(node);
        const Instruction& each = joint_.plan(d).instructions[node - joint_.first[d]];
        Clock end = starts[k];
        if (is_collective(each.op))
          for (const Clock& other : starts)
            join(end, other);
        else if (k == 1) // of a transfer, which the other end comes before
          join(end, starts[0]);
        if (const Entry& entry = entries_[node]; entry.lane != kNone) {
          ends_[entry.lane][entry.position] = end;
          end[entry.lane] = std::max(end[entry.lane], entry.position + 1);
        }
        at_stream[streams[d] + each.stream] = end;
        if (each.records)
          at_event[events[d] + each.records.value] = end;
      }
    }
  }

  /// How many nodes end at one time: an instruction, the two ends of a transfer, a collective.
  size_t unit(const std::vector<uint32_t>& order, size_t done) const {
    const auto team = [&](uint32_t node) {
      const Instruction& each = joint_.instruction(node);
      return joint_.set.team_of(
          each, joint_.set.rank_in(each.group, joint_.devices[joint_.index_of(node)]));
    };
    const Instruction& each = joint_.instruction(order[done]);
    if (is_transfer(each.op))
      return 2;
    size_t length = 1;
    if (is_collective(each.op))
      for (; done + length < order.size(); ++length)
        if (const Instruction& other = joint_.instruction(order[done + length]);
            !is_collective(other.op) || other.edge != each.edge ||
            team(order[done + length]) != team(order[done]))
          break;
    return length;
  }

  const JointPlan& joint_;
  const size_t device_;
  const Plan& plan_;
  std::vector<Entry> entries_; ///< of each node
  std::vector<std::vector<uint32_t>> lanes_;
  std::vector<Clock> starts_;            ///< of each instruction
  std::vector<std::vector<Clock>> ends_; ///< of each entry of each lane
};

/// The heaviest set of nodes that holds with each node those that it needs.
class Closure {
public:
  explicit Closure(size_t nodes) : weights_(nodes), graph_(nodes + 2) {}

  void add(uint32_t node, int64_t weight) { weights_[node] += weight; }
  void needs(uint32_t node, uint32_t other) { connect(node, other, kWithoutLimit); }

  /// Whether each node is in it.
  std::vector<bool> heaviest() {
    const size_t source = weights_.size(), sink = source + 1;
    for (size_t node = 0; node < weights_.size(); ++node)
      if (weights_[node] > 0)
        connect(source, node, weights_[node]);
      else if (weights_[node] < 0)
        connect(node, sink, -weights_[node]);
    boost::boykov_kolmogorov_max_flow(graph_, source, sink);
    const auto color = boost::get(boost::vertex_color, graph_);
    std::vector<bool> in(weights_.size());
    for (size_t node = 0; node < weights_.size(); ++node)
      in[node] = color[node] == boost::black_color;
    return in;
  }

private:
  static constexpr int64_t kWithoutLimit = std::numeric_limits<int64_t>::max() / 4;
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using Vertex = boost::property<
      boost::vertex_color_t, boost::default_color_type,
      boost::property<boost::vertex_distance_t, int64_t,
                      boost::property<boost::vertex_predecessor_t, Traits::edge_descriptor>>>;
  using Edge = boost::property<
      boost::edge_capacity_t, int64_t,
      boost::property<boost::edge_residual_capacity_t, int64_t,
                      boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>;
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, Vertex, Edge>;

  void connect(size_t from, size_t to, int64_t capacity) {
    const auto there = boost::add_edge(from, to, graph_).first;
    const auto back = boost::add_edge(to, from, graph_).first;
    boost::put(boost::edge_capacity, graph_, there, capacity);
    boost::put(boost::edge_capacity, graph_, back, 0);
    boost::put(boost::edge_reverse, graph_, there, back);
    boost::put(boost::edge_reverse, graph_, back, there);
  }

  std::vector<int64_t> weights_;
  Graph graph_;
};

class Search {
public:
  Search(const EventOrder& order, const Plan& plan)
      : order_(order), starts_(static_cast<uint32_t>(plan.instructions.size())), plan_(plan) {
    size_t nodes = starts_;
    for (const auto& lane : order.lanes()) {
      first_end_.push_back(static_cast<uint32_t>(nodes));
      nodes += lane.size();
    }
    nodes_ = nodes;
  }

  WorstMoment run(const std::vector<Storage>& storages) {
    Closure closure(nodes_);
    add_order(closure);
    std::vector<uint32_t> gone(storages.size(), kNone); // the event with which each is
    for (size_t s = 0; s < storages.size(); ++s) {
      gone[s] = event_of(storages[s].drops);
      closure.add(storages[s].made, storages[s].bytes);
      if (gone[s] != kNone)
        closure.add(gone[s], -storages[s].bytes);
    }
    const std::vector<bool> past = closure.heaviest();
    WorstMoment worst;
    for (uint32_t s = 0; s < storages.size(); ++s)
      if (past[storages[s].made] && (gone[s] == kNone || !past[gone[s]]))
        worst.storages.push_back(s);
    bool running = false;
    for (uint32_t i = 0; i < starts_; ++i) {
      const bool runs = past[i] && !past[end_of(order_.entry(i, false))];
      if (runs ? !running || !is_compute(plan_.instructions[worst.instruction].op)
               : past[i] && !running)
        worst.instruction = i;
      running = running || runs;
    }
    return worst;
  }

private:
  uint32_t end_of(const EventOrder::Entry& entry) const {
    return first_end_[entry.lane] + entry.position;
  }

  void add_order(Closure& closure) const {
    const auto& lanes = order_.lanes();
    for (uint32_t lane = 0; lane < lanes.size(); ++lane)
      for (uint32_t position = 0; position < lanes[lane].size(); ++position) {
        const EventOrder::Entry entry{lane, position};
        const uint32_t start = lanes[lane][position];
        const Clock* earlier = nullptr; // whose needs are known
        closure.needs(end_of(entry), start);
        if (lane < plan_.streams.size()) {
          earlier = position > 0 ? &order_.start(lanes[lane][position - 1]) : nullptr;
          need(closure, start, order_.start(start), earlier);
          earlier = &order_.start(start);
        } else if (position > 0) {
          earlier = &order_.end({lane, position - 1});
          closure.needs(end_of(entry), end_of({lane, position - 1}));
        }
        need(closure, end_of(entry), order_.end(entry), earlier);
      }
  }
  void need(Closure& closure, uint32_t node, const Clock& clock, const Clock* known) const {
    for (uint32_t lane = 0; lane < clock.size(); ++lane)
      if (clock[lane] > (known ? (*known)[lane] : 0))
        closure.needs(node, end_of({lane, clock[lane] - 1}));
  }

  /// The one with which all of them have happened; none if they need not have.
  uint32_t event_of(const std::vector<Storage::Drop>& drops) const {
    std::vector<EventOrder::Entry> last; // those that no other one comes after
    for (const Storage::Drop& drop : drops)
      last.push_back(order_.entry(drop.instruction, drop.delivery));
    for (size_t i = 0; i < last.size();) {
      const bool covered = std::any_of(last.begin(), last.end(), [&](const auto& other) {
        return order_.ends_before(last[i], other);
      });
      if (covered)
        last.erase(last.begin() + static_cast<ptrdiff_t>(i));
      else
        ++i;
    }
    if (last.empty())
      return kNone;
    if (last.size() == 1)
      return end_of(last[0]);
    // Clocks only rise along a stream.
    for (uint32_t lane = 0; lane < plan_.streams.size(); ++lane) {
      const auto& instructions = order_.lanes()[lane];
      const auto start =
          std::partition_point(instructions.begin(), instructions.end(), [&](uint32_t instruction) {
            const Clock& clock = order_.start(instruction);
            return std::any_of(last.begin(), last.end(), [&](const EventOrder::Entry& entry) {
              return clock[entry.lane] <= entry.position;
            });
          });
      if (start != instructions.end())
        return *start;
    }
    return kNone;
  }

  const EventOrder& order_;
  const uint32_t starts_; ///< events of starts, by instruction; behind them those of ends, by lane
  const Plan& plan_;
  size_t nodes_ = 0;
  std::vector<uint32_t> first_end_; ///< of each lane
};

} // namespace

WorstMoment worst_moment(const JointPlan& joint, const std::vector<uint32_t>& order, size_t device,
                         const std::vector<Storage>& storages) {
  const EventOrder events(joint, order, device);
  return Search(events, joint.plan(device)).run(storages);
}

} // namespace piper::ir
