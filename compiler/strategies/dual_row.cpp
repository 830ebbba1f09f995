#include "compiler/strategies/dual_row.h"

#include <algorithm>
#include <deque>

namespace piper::compiler {

namespace {

class RowBuilder {
public:
  explicit RowBuilder(const DualRank& rank) : rank_(rank) {}

  void forward(int stage) { add(take('F', stage), {}); }
  void backward(int stage) { add(take('B', stage), {}); }
  void forward_beside_backward(int forward, int backward) {
    const auto f = take('F', forward);
    add(f, take('B', backward));
  }
  void backward_inputs(int stage) {
    if (const auto action = take('I', stage)) {
      steps_.push_back(*action);
      waiting_.push_back({action->stage, 'W', action->microbatch});
    }
  }
  void backward_weights() { ///< the oldest that waits
    if (waiting_.empty())
      return;
    steps_.push_back(waiting_.front());
    waiting_.pop_front();
  }
  std::vector<Step> finish() {
    while (!waiting_.empty())
      backward_weights();
    return std::move(steps_);
  }

private:
  /// None for a microbatch that is not there: a schedule for more of them is used then.
  std::optional<Action> take(char pass, int stage) {
    const int64_t n = (pass == 'F' ? forwards_ : backwards_)[stage]++;
    return n < rank_.microbatches[stage] ? std::optional(rank_.action(pass, stage, n))
                                         : std::nullopt;
  }
  void add(std::optional<Action> first, std::optional<Action> second) {
    if (!first)
      std::swap(first, second);
    if (first)
      steps_.emplace_back(*first, second);
  }

  const DualRank& rank_;
  std::array<int64_t, 2> forwards_{}, backwards_{};
  std::deque<Action> waiting_; ///< W whose I has run
  std::vector<Step> steps_;
};

} // namespace

std::vector<Step> dual_row(const DualRank& rank) {
  const int to_middle = rank.depth - 1 - rank.rank, to_end = rank.rank + 1;
  const int64_t microbatches = std::max<int64_t>(
      2 * rank.depth, *std::max_element(rank.microbatches.begin(), rank.microbatches.end()));
  RowBuilder row(rank);
  for (int i = 0; i < 2 * to_middle; ++i)
    row.forward(0);
  for (int i = 0; i < to_end; ++i) {
    row.forward(0);
    row.forward(1);
  }
  for (int i = 0; i < to_middle; ++i) {
    row.backward_inputs(1);
    row.backward_weights();
    row.forward(1);
  }
  for (int64_t i = 0; i < microbatches - 2 * rank.depth + to_end; ++i) {
    if (i == 0 && to_middle == 0) { // one after the other, so that its peer can start sooner
      row.forward(0);
      row.backward(1);
    } else {
      row.forward_beside_backward(0, 1);
    }
    row.forward_beside_backward(1, 0);
  }
  for (int i = 0; i < to_middle; ++i) {
    row.backward(1);
    row.forward_beside_backward(1, 0);
  }
  for (int i = 0; i < 2 * to_end; ++i) { // whole at first, then in halves
    const int stage = i % 2 == 0 ? 1 : 0;
    if (i < to_end)
      row.backward(stage);
    else
      row.backward_inputs(stage);
  }
  for (int i = 0; i < to_middle; ++i) {
    row.backward_weights();
    row.backward_inputs(0);
  }
  return row.finish();
}

} // namespace piper::compiler
