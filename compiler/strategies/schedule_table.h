// ScheduleTable: a pipeline schedule as data. Who runs which pass of which microbatch, in which
// order; no times, no communication, no model. Builders make it, `pipeline` turns it into
// directives, and PyTorch's schedule files are read into it.
#pragma once

#include "ir/result.h"

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace piper::compiler {

/// One pass of one microbatch through one stage.
struct Action {
  int stage = 0;
  char pass = 'F'; ///< 'F' forward; 'B' backward, or its halves 'I' (for inputs), 'W' (for weights)
  int64_t microbatch = 0;

  std::string to_string() const; ///< "2F0", as PyTorch writes it
  auto operator<=>(const Action&) const = default;
};

/// What a rank does next: one action, or a forward and a backward side by side.
struct Step {
  Action action;
  std::optional<Action> beside;

  Step(Action action_, std::optional<Action> beside_ = {}) : action(action_), beside(beside_) {}
  std::vector<Action> actions() const;
  std::string to_string() const; ///< "2F0", "0F7&7B3"
  bool operator==(const Step&) const = default;
};

/// Times of one stage's passes.
struct Durations {
  double F = 1, I = 1, W = 1;
  double B = 2;  ///< I and W in one
  double FB = 3; ///< a forward and a full backward side by side

  /// Of stages that are `1/n` as large, for ranks that hold n of them.
  Durations divided(int n) const { return {F / n, I / n, W / n, B / n, FB / n}; }
  double of(const Step& step) const;
};

/// When everything happens if transfers take no time. Vectors are by rank.
struct ScheduleTiming {
  double makespan = 0;
  std::vector<std::vector<double>> start; ///< of each step
  std::vector<double> idle;               ///< makespan - the time spent in passes
  std::vector<double> gaps; ///< the part of it between the rank's first start and its last end
  /// Most microbatches of a stage that were forwarded and not yet fully gone backward, over the
  /// stages of the rank: a rank of v stages holds peak / v microbatches of its part of the model.
  std::vector<int> peak;
};

class ScheduleTable {
public:
  ScheduleTable() = default;
  /// One row of steps a rank. Stages and microbatches are as many as the actions name.
  explicit ScheduleTable(std::vector<std::vector<Step>> rows);

  int ranks() const { return static_cast<int>(rows_.size()); }
  int stages() const { return stages_; }
  int64_t microbatches() const { return microbatches_; }
  const std::vector<std::vector<Step>>& rows() const { return rows_; }
  /// The ranks that run a stage. More than one: each has a copy of the stage's parameters, and a
  /// microbatch passes the stage on one of them.
  std::vector<int> ranks_of(int stage) const;

  /// Every stage has F, and B or else I and W, of every microbatch once, on one rank; every rank
  /// has something to run, and the rows can be run to their end. A User error says which rank
  /// cannot go on, at which action, and why.
  Result<void> check() const;
  /// The times of a table whose rows can be run to their end; else the error of `check`.
  Result<ScheduleTiming> evaluate(const Durations& durations = {}) const;

  /// A picture: a line a rank, a column a unit of time, `.` where a rank is idle. Parses back.
  ///   rank 0: 0F0 0F1 .   .   0B0---- .   0B1----
  ///   rank 1: .   1F0 1B0---- 1F1 1B1----
  std::string to_text() const;
  static Result<ScheduleTable> parse(std::string_view text);

  /// PyTorch's file (torch.distributed.pipelining, `_PipelineScheduleRuntime`): one row a rank, one
  /// action a cell, a pair as (0F7;7B3)OVERLAP_F_B. Written without idle slots and without
  /// communication ("compute_only"); both forms are read. Of the communication in a file only the
  /// sense is checked (nothing is sent or reduced before it is made, nor received after it is
  /// used): the compiler puts in its own. `file` is for errors, which have row and column.
  std::string to_csv() const;
  static Result<ScheduleTable> parse_csv(std::string_view csv, const std::string& file = {});

  bool operator==(const ScheduleTable&) const = default;

private:
  std::vector<std::vector<Step>> rows_;
  int stages_ = 0;
  int64_t microbatches_ = 0;
};

} // namespace piper::compiler
