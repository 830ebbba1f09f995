// The text forms of a ScheduleTable: the picture, and PyTorch's CSV.
#include "compiler/strategies/schedule_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

namespace piper::compiler {

namespace {

/// Everything up to `end`, which is taken too; all if it does not occur.
std::string_view take_until(std::string_view& rest, char end) {
  const size_t at = rest.find(end);
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(at == std::string_view::npos ? rest.size() : at + 1);
  return part;
}

std::string_view trim(std::string_view text) {
  const char* blanks = " \t\r";
  const size_t first = text.find_first_not_of(blanks);
  return first == std::string_view::npos
             ? std::string_view{}
             : text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

/// A number at the front of `rest`, below a million so that no typing slip makes a huge table.
template <class Int> bool take_number(std::string_view& rest, Int& number) {
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (error != std::errc() || rest.front() == '-' || number >= 1'000'000)
    return false;
  rest.remove_prefix(end - rest.data());
  return true;
}

/// One of PyTorch's single actions: "2F0", "1SEND_B3", "0UNSHARD".
struct Word {
  int stage = 0;
  std::string_view kind;
  int64_t microbatch = -1; ///< none
};

std::optional<Word> read_word(std::string_view text) {
  Word word;
  if (text.empty() || !take_number(text, word.stage))
    return {};
  word.kind = text.substr(0, text.find_first_of("0123456789"));
  text.remove_prefix(word.kind.size());
  if (!text.empty() && (!take_number(text, word.microbatch) || !text.empty()))
    return {};
  return word;
}

std::optional<Action> as_action(const std::optional<Word>& word) {
  if (!word || word->kind.size() != 1 || word->microbatch < 0 ||
      std::string_view("FBIW").find(word->kind[0]) == std::string_view::npos)
    return {};
  return Action{word->stage, word->kind[0], word->microbatch};
}

/// "2F0", or a pair with `separator` between.
std::optional<Step> read_step(std::string_view text, char separator) {
  std::string_view rest = text;
  const auto first = as_action(read_word(trim(take_until(rest, separator))));
  if (!first || text.find(separator) == std::string_view::npos)
    return first ? std::optional<Step>(*first) : std::nullopt;
  const auto second = as_action(read_word(trim(rest)));
  return second ? std::optional<Step>(Step(*first, *second)) : std::nullopt;
}

/// One row of PyTorch's file: its steps, and a check of the communication between them.
class CsvRow {
public:
  CsvRow(std::string file, int row) : file_(std::move(file)), row_(row) {}

  Result<void> read(std::string_view cell) {
    ++column_;
    if (cell.empty())
      return {};
    constexpr std::string_view kPair = ")OVERLAP_F_B";
    if (cell.front() == '(' && cell.ends_with(kPair))
      return add(read_step(cell.substr(1, cell.size() - 1 - kPair.size()), ';'), cell);
    const std::optional<Word> word = read_word(cell);
    if (!word || word->kind.size() <= 1)
      return add(read_step(cell, ';'), cell);
    return check_communication(*word, cell);
  }
  /// At the end of the row.
  Result<void> finish() const {
    for (const auto& [need, where] : awaited_)
      if (!done_.contains(need))
        return user_error(
            fmt::format("what is received here has no reader {} in this row", need.to_string()),
            where, "put each receive into the row of the stage that reads it");
    return {};
  }
  std::vector<Step> take() { return std::move(steps_); }

private:
  Result<void> add(std::optional<Step> step, std::string_view cell) {
    if (!step || (cell.front() == '(') != step->beside.has_value())
      return not_understood(cell);
    for (const Action& action : step->actions()) {
      if (reduced_.contains(action.stage) && action.pass != 'F')
        return user_error(
            fmt::format("{} comes after the REDUCE_GRAD of its stage", action.to_string()), where(),
            "reduce a stage's gradients after its last backward");
      // A reader of either half of the backward is known by the B that stands for it.
      done_.insert(action.pass == 'I' ? Action{action.stage, 'B', action.microbatch} : action);
    }
    steps_.push_back(*step);
    return {};
  }

  Result<void> check_communication(const Word& word, std::string_view cell) {
    const bool send = word.kind == "SEND_F" || word.kind == "SEND_B";
    const bool receive = word.kind == "RECV_F" || word.kind == "RECV_B";
    if (send || receive) {
      if (word.microbatch < 0)
        return not_understood(cell);
      const Action pass{word.stage, word.kind.back(), word.microbatch};
      if (send && !done_.contains(pass))
        return user_error(fmt::format("{} sends what {} has not made yet", cell, pass.to_string()),
                          where(), "send after the pass that makes it");
      if (receive && done_.contains(pass))
        return user_error(fmt::format("{} comes after {}, which reads it", cell, pass.to_string()),
                          where(), "receive before the pass that reads it");
      if (receive)
        awaited_.emplace_back(pass, where());
      return {};
    }
    if (word.microbatch >= 0 ||
        (word.kind != "UNSHARD" && word.kind != "RESHARD" && word.kind != "REDUCE_GRAD"))
      return not_understood(cell);
    if (word.kind == "REDUCE_GRAD")
      reduced_.insert(word.stage);
    return {};
  }

  Result<void> not_understood(std::string_view cell) const {
    return user_error(fmt::format("'{}' is no action", cell), where(),
                      "an action is STAGE KIND MICROBATCH, as in 2F0, 2B0, 2I0, 2W0, 0SEND_F1, "
                      "0UNSHARD, or a pair (0F7;7B3)OVERLAP_F_B");
  }
  std::string where() const {
    return fmt::format("{}row {}, column {}", file_.empty() ? "" : file_ + ", ", row_, column_);
  }

  std::string file_;
  int row_, column_ = 0; ///< from 1, as spreadsheets count
  std::vector<Step> steps_;
  std::set<Action> done_; ///< so far, I as B
  std::set<int> reduced_;
  std::vector<std::pair<Action, std::string>> awaited_; ///< readers of what was received
};

} // namespace

std::string ScheduleTable::to_text() const {
  const auto timing = evaluate(); // a table that cannot run is shown without its gaps
  size_t width = 0;
  for (const auto& row : rows_)
    for (const Step& step : row)
      for (const Action& action : step.actions())
        width = std::max(width, action.to_string().size() + 1);
  std::string text;
  for (int rank = 0; rank < ranks(); ++rank) {
    std::string line = fmt::format("rank {:{}}: ", rank, ranks() > 10 ? 2 : 1);
    int64_t now = 0;
    for (size_t i = 0; i < rows_[rank].size(); ++i) {
      const Step& step = rows_[rank][i];
      if (timing.ok())
        for (const auto start = std::llround(timing->start[rank][i]); now < start; ++now)
          line += fmt::format("{:{}}", ".", width);
      const auto units = std::llround(Durations{}.of(step));
      std::string cell = step.to_string();
      if (units > 1)
        cell.resize(units * width - 1, '-');
      line += fmt::format("{:{}}", cell, units * width);
      now += units;
    }
    line.resize(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Result<ScheduleTable> ScheduleTable::parse(std::string_view text) {
  std::vector<std::vector<Step>> rows;
  for (int line = 1; !text.empty(); ++line) {
    std::string_view rest = trim(take_until(text, '\n'));
    if (rest.empty())
      continue;
    std::string_view name = trim(take_until(rest, ':'));
    size_t rank = SIZE_MAX;
    if (name.starts_with("rank "))
      name = trim(name.substr(5));
    if (name.empty() || !take_number(name, rank) || !name.empty() || rank != rows.size())
      return user_error(fmt::format("expected 'rank {}:'", rows.size()),
                        fmt::format("line {}", line), "a line a rank, in order");
    rows.emplace_back();
    while (!(rest = trim(rest)).empty()) {
      std::string_view cell = take_until(rest, ' ');
      if (cell == ".")
        continue;
      const std::string_view bare = cell.substr(0, cell.find_last_not_of('-') + 1);
      const auto step = read_step(bare, '&');
      if (!step)
        return user_error(fmt::format("'{}' is no step", cell), fmt::format("line {}", line),
                          "a step is 2F0, 2B0, 2I0, 2W0 or a pair 0F7&7B3; . is idle");
      rows.back().push_back(*step);
    }
  }
  return ScheduleTable(std::move(rows));
}

std::string ScheduleTable::to_csv() const {
  std::string csv;
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      const Step& step = row[i];
      csv += i ? "," : "";
      csv += step.beside ? fmt::format("({};{})OVERLAP_F_B", step.action.to_string(),
                                       step.beside->to_string())
                         : step.to_string();
    }
    csv += "\n";
  }
  return csv;
}

Result<ScheduleTable> ScheduleTable::parse_csv(std::string_view csv, const std::string& file) {
  std::vector<std::vector<Step>> rows;
  while (!csv.empty()) {
    std::string_view line = trim(take_until(csv, '\n'));
    if (line.empty() && trim(csv).empty())
      break;
    CsvRow row(file, static_cast<int>(rows.size()) + 1);
    while (!line.empty())
      PIPER_CHECK_OK(row.read(trim(take_until(line, ','))));
    PIPER_CHECK_OK(row.finish());
    rows.push_back(row.take());
  }
  return ScheduleTable(std::move(rows));
}

} // namespace piper::compiler
