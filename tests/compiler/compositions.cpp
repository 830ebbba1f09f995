#include "tests/compiler/compositions.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace piper::test {

using namespace ir;

namespace {

class Composer {
public:
  Composer(const ModelSpec& model, uint32_t devices, std::mt19937_64& random)
      : devices_(devices), random_(random) {
    std::set<int64_t> layers;
    for (const ModelCall& call : model.calls) {
      calls_.push_back(call.name);
      if (call.cut == Cut::Experts)
        with_experts_.insert(call.name);
      else if (call.cut != Cut::None)
        cuts_ = true;
      for (const Tag& tag : call.annotations)
        if (tag.name == "layer")
          layers.insert(tag.index);
    }
    layers_.assign(layers.begin(), layers.end());
  }

  Strategy run() {
    if (one_in(4))
      named();
    else
      by_hand();
    for (size_t extras = pick(5); extras > 0; --extras)
      add_extra();
    if (one_in(10))
      spoil();
    if (one_in(4))
      std::shuffle(strategy_.directives.begin(), strategy_.directives.end(), random_);
    return std::move(strategy_);
  }

private:
  size_t pick(size_t count) { return static_cast<size_t>(random_() % count); }
  int64_t number(int64_t count) { return static_cast<int64_t>(pick(static_cast<size_t>(count))); }
  bool one_in(size_t count) { return pick(count) == 0; }
  template <class T> T one_of(std::initializer_list<T> list) {
    return list.begin()[pick(list.size())];
  }
  template <class T> const T& one_of(const std::vector<T>& list) { return list[pick(list.size())]; }

  void named() {
    const bool shards = (cuts_ || !with_experts_.empty()) && !one_in(3);
    const std::string data =
        shards
            ? one_of({"tp:2", "tp:2", "sp:2", "sp:2", "ep:2", "ep:2", "tp:2xdp:2", "sp:2xzero3:2",
                      "ep:2xdp:2", "ep:2xzero2:2", "ep:4", "sp:4", "tp:2xep:2", "sp:2xep:4"})
            : one_of({"", "", "dp:2", "zero1:2", "zero2:2", "zero3:2,within=2", "zero3:2"});
    std::string pipeline = one_of({"gpipe", "1f1b", "interleaved", "loopedbfs", "zbh1", "zbh2",
                                   "zb1p", "zbv", "vhalf", "vmin", "dualpipe", "dualpipev"}) +
                           fmt::format(":{}", 1 + pick(data.empty() ? 4 : 2));
    if (one_in(4))
      pipeline += fmt::format(",v={}", 1 + pick(3));
    microbatches_ = one_of<int64_t>({2, 4, 4, 6, 8});
    const bool alone = one_in(5);
    strategy_.schedule(data.empty() ? pipeline
                       : alone      ? data
                                    : data + "x" + pipeline,
                       microbatches_ * (data.empty() ? 1 : one_of({1, 2, 2, 4})));
  }

  void by_hand() {
    uint32_t replicas = std::min(devices_, one_of<uint32_t>({1, 1, 1, 2, 2, 3, 4}));
    if (!with_experts_.empty() && one_in(2)) {
      replicas = one_of<uint32_t>({2, 2, 4});
      experts_ = one_of<uint32_t>({2, 2, replicas});
    } else if (cuts_ && one_in(2)) {
      tensor_ = one_of<uint32_t>({2, 2, 2, 4});
      sequence_ = one_in(2);
    }
    const uint32_t ranks = std::max(1u, devices_ / (replicas * tensor_));
    microbatches_ = one_of<int64_t>({1, 2, 2, 3, 4});
    if (microbatches_ > 1 || one_in(3))
      strategy_.split({}, microbatches_);
    const auto stages = cut_calls(1 + pick(5));
    const bool by_tag = one_in(3), shuffled = one_in(4), by_microbatch = one_in(6);
    Replicate replicate = random_replicate();
    for (size_t s = 0; s < stages.size(); ++s) {
      Filter filter{{"call", stages[s]}};
      if (by_tag) {
        strategy_.tag(filter, "stage", static_cast<int64_t>(s));
        filter = {{"stage", static_cast<int64_t>(s)}};
      }
      const auto rank = static_cast<uint32_t>(shuffled ? pick(ranks) : s % ranks);
      if (replicas > 1 && one_in(6))
        replicate = random_replicate();
      if (!by_microbatch || microbatches_ == 1) {
        put(filter, stages[s], rank, replicas, replicate);
        continue;
      }
      // As a bidirectional pipeline: half of the microbatches the other way round.
      std::vector<int64_t> first, second;
      for (int64_t m = 0; m < microbatches_; ++m)
        (m < microbatches_ / 2 ? first : second).push_back(m);
      Filter one = filter, other = filter;
      one.add({"MB", first});
      other.add({"MB", second});
      put(one, stages[s], rank, replicas, replicate);
      put(other, stages[s], ranks - 1 - rank, replicas, replicate);
    }
  }

  /// All calls, in runs.
  std::vector<std::vector<std::string>> cut_calls(size_t count) {
    std::set<size_t> starts{0};
    while (starts.size() < std::min(count, calls_.size()))
      starts.insert(pick(calls_.size()));
    std::vector<std::vector<std::string>> runs;
    for (size_t c = 0; c < calls_.size(); ++c) {
      if (starts.contains(c))
        runs.emplace_back();
      runs.back().push_back(calls_[c]);
    }
    return runs;
  }

  Replicate random_replicate() {
    Replicate replicate;
    replicate.shard_optimizer = one_in(3);
    replicate.shard_grads = one_in(3);
    replicate.shard_params = one_in(3);
    if (one_in(4) && (replicate.shard_optimizer || replicate.shard_grads || replicate.shard_params))
      replicate.shard_within = 2;
    replicate.bucket_mb = one_of({0.0, 0.0003, 0.002});
    if (one_in(4))
      replicate.reduce_stream = "sums";
    if (one_in(4))
      replicate.gather_stream = "gathers";
    return replicate;
  }

  /// `calls`: those that the filter matches.
  void put(Filter filter, const std::vector<std::string>& calls, uint32_t rank, uint32_t replicas,
           Replicate replicate) {
    std::vector<DeviceIndex> devices;
    for (uint32_t i = 0; i < replicas * tensor_; ++i)
      devices.push_back(rank * replicas * tensor_ + i);
    if (tensor_ > 1) {
      strategy_.shard_tensor(filter, devices, tensor_, sequence_ != one_in(12));
      if (replicas == 1)
        return;
    }
    std::vector<std::string> experts;
    for (const std::string& call : calls)
      if (with_experts_.contains(call))
        experts.push_back(call);
    if (experts_ > 1 && !experts.empty()) {
      Filter of_experts = filter;
      of_experts.add({"call", std::move(experts)});
      strategy_.shard(std::move(of_experts), devices, experts_);
    }
    if (replicas == 1) {
      strategy_.place(std::move(filter), std::move(devices), one_in(6) ? "work" : "");
      return;
    }
    replicate.filter = std::move(filter);
    replicate.devices = std::move(devices);
    strategy_.replicate(std::move(replicate));
  }

  void add_extra() {
    switch (pick(10)) {
    case 0:
      strategy_.split_backward(one_in(3) ? random_filter(true, {}) : Filter());
      return;
    case 1:
      return one_in(2) ? order_passes() : order_anything();
    case 2:
      strategy_.overlap(random_filter(true, {"F", "B", "BW"}), random_filter(true, {"F", "B"}));
      return;
    case 3:
    case 4:
      strategy_.fuse(one_in(4) ? Filter()
                               : random_filter(one_in(3), {"F", "B", "BI", "BW", "REDUCE"}));
      return;
    case 5:
      strategy_.recompute(one_in(3) ? Filter() : random_filter(one_in(3), {}));
      return;
    case 7:
      strategy_.fuse(one_in(3) ? Filter() : random_filter(one_in(20), {}), true);
      return;
    case 6:
      strategy_.prefetch(one_in(2) ? Filter() : random_filter(false, {}), number(4));
      return;
    case 8:
      strategy_.mirror(one_in(2) ? Filter() : random_filter(false, {}), 1 + number(2));
      return;
    default:
      strategy_.tag(random_filter(false, {}), "part", number(2));
    }
  }

  /// One of `passes`, where there are any.
  Filter random_filter(bool microbatch, const std::vector<const char*>& passes) {
    Filter filter;
    if (one_in(40))
      filter.add({"layer", 99});
    else if (one_in(40))
      filter.add({"nothing", 0});
    else if (one_in(3) && !layers_.empty())
      filter.add({"layer", one_in(2) ? std::vector{one_of(layers_)}
                                     : std::vector{one_of(layers_), one_of(layers_)}});
    else if (one_in(4))
      filter.add({"call", one_of(calls_)});
    if (microbatch && microbatches_ > 1 && one_in(2))
      filter.add({"MB", number(microbatches_)});
    if (!passes.empty())
      filter.add({"PASS", one_of(passes)});
    return filter;
  }

  /// Forwards and backwards of the microbatches in an order that data allows.
  void order_passes() {
    std::vector<std::vector<Filter>> groups;
    std::vector<int64_t> open;
    for (int64_t next = 0; next < microbatches_ || !open.empty();) {
      if (next < microbatches_ && (open.empty() || one_in(2))) {
        groups.push_back({{{"PASS", "F"}, {"MB", next}}});
        open.push_back(next++);
      } else {
        const size_t which = pick(open.size());
        groups.push_back({{{"PASS", "B"}, {"MB", open[which]}}});
        open.erase(open.begin() + static_cast<ptrdiff_t>(which));
      }
    }
    strategy_.order(std::move(groups));
  }
  void order_anything() {
    std::vector<std::vector<Filter>> groups(2 + pick(2));
    for (auto& group : groups)
      for (size_t i = 1 + pick(2); i > 0; --i)
        group.push_back(random_filter(true, {"F", "B", "BI", "BW"}));
    strategy_.order(std::move(groups));
  }

  void spoil() {
    auto& all = strategy_.directives;
    if (all.empty())
      return;
    const size_t which = pick(all.size());
    if (one_in(2))
      all.push_back(all[which]);
    else
      all.erase(all.begin() + static_cast<ptrdiff_t>(which));
  }

  const uint32_t devices_;
  std::mt19937_64& random_;
  std::vector<std::string> calls_;
  std::vector<int64_t> layers_;
  std::set<std::string> with_experts_; ///< calls
  bool cuts_ = false;                  ///< the model has other calls that can be cut
  uint32_t tensor_ = 1, experts_ = 1;  ///< ranks of a block
  bool sequence_ = false;
  int64_t microbatches_ = 1; ///< of one replica
  Strategy strategy_;
};

} // namespace

Strategy compose(const ModelSpec& model, uint32_t devices, std::mt19937_64& random) {
  return Composer(model, devices, random).run();
}

bool is_reasoned(const Error& error) {
  return error.kind == ErrorKind::User && !error.message.empty() &&
         (error.where.find("directive ") != std::string::npos ||
          error.message.starts_with("no directive places "));
}

} // namespace piper::test
