#include "compiler/strategies/named_schedules.h"
#include "compiler/strategies/strategies.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

namespace piper::compiler {

using namespace ir;

namespace {

/// One part of a product: "interleaved:4,v=3".
struct Atom {
  std::string name;
  int count = 1;
  std::map<std::string, int> options;
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t at; (at = text.find(separator)) != std::string_view::npos;) {
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  parts.push_back(text);
  return parts;
}

/// "NAME<separator>NUMBER"; the number is at least 1.
bool read_count(std::string_view text, char separator, std::string& name, int& count) {
  const size_t at = text.find(separator);
  name = text.substr(0, at);
  if (at == std::string_view::npos)
    return false;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + at + 1, end, count);
  return error == std::errc() && stop == end && count >= 1;
}

Result<Atom> parse_atom(std::string_view part, std::string_view expression) {
  const std::vector<std::string_view> words = split(part, ',');
  Atom atom;
  if (!read_count(words[0], ':', atom.name, atom.count) && words[0] != atom.name)
    return user_error(
        fmt::format("'{}' in the strategy '{}' needs a count of at least 1", part, expression), "",
        fmt::format("write {}:2, say", atom.name));
  for (size_t i = 1; i < words.size(); ++i) {
    std::string option;
    int value = 0;
    if (!read_count(words[i], '=', option, value))
      return user_error(
          fmt::format("the option '{}' of '{}' needs a value of at least 1", words[i], atom.name),
          "", fmt::format("write {},{}=2, say", words[0], option.empty() ? "v" : option));
    atom.options[option] = value;
  }
  return atom;
}

Result<std::vector<Atom>> parse(std::string_view expression) {
  std::vector<Atom> atoms;
  for (std::string_view part : split(expression, 'x')) {
    PIPER_TRY(Atom atom, parse_atom(part, expression));
    atoms.push_back(std::move(atom));
  }
  return atoms;
}

/// Enough to keep the bubble of a pipeline below a fifth, as far as the rows allow.
int64_t choose_microbatches(int64_t rows, int ranks) {
  if (ranks == 1)
    return 1;
  int64_t best = 1;
  for (int64_t m = 1; m <= std::min<int64_t>(rows, 4 * ranks); ++m)
    if (rows % m == 0)
      best = m;
  return best;
}

/// 1, 2, 3 of "zero1", …; 0 of what is none.
int zero_level(std::string_view name) {
  return name == "zero1" ? 1 : name == "zero2" ? 2 : name == "zero3" ? 3 : 0;
}

/// The rows of the directive's `table`.
Result<ScheduleTable> given_table(const Schedule& schedule) {
  if (schedule.table.empty())
    return user_error("the schedule 'table' has no table", "",
                      R"(give its rows: "table": ["0F0,0F1,0B0,0B1", …], one a rank)");
  PIPER_TRY(ScheduleTable table,
            ScheduleTable::parse_csv(fmt::format("{}\n", fmt::join(schedule.table, "\n"))));
  PIPER_CHECK_OK(table.check());
  return table;
}

} // namespace

Result<Strategy> build_strategy(const ModelSpec& model, const Schedule& schedule,
                                const CostModel* costs) {
  const std::string& expression = schedule.expression;
  PIPER_TRY(const std::vector<Atom> atoms, parse(expression));
  PipelineShape shape{.model = &model, .costs = costs};
  const Atom *pipelined = nullptr, *replicated = nullptr, *tensors = nullptr, *experts = nullptr;
  for (const Atom& atom : atoms) {
    const bool pipeline = atom.name == "table" || is_schedule(atom.name);
    const int zero = zero_level(atom.name);
    const bool data = atom.name == "dp" || zero > 0;
    const bool tensor = atom.name == "tp" || atom.name == "sp", expert = atom.name == "ep";
    if ((pipeline && pipelined) || (data && replicated) || (tensor && tensors) ||
        (expert && experts))
      return user_error(fmt::format("the strategy '{}' has two parts of one kind", expression), "",
                        "join at most one pipeline and one data-parallel, one tensor-parallel and "
                        "one expert-parallel part");
    if (!pipeline && !data && !tensor && !expert && atom.name != "single")
      return user_error(
          fmt::format("unknown strategy '{}' in '{}'", atom.name, expression), "",
          fmt::format(
              "known names: single, dp:N, zero1:N, zero2:N, zero3:N, tp:N, sp:N, ep:N, {}; join "
              "them with x, as in dp:2x1f1b:4",
              schedule_names()));
    for (const auto& [option, value] : atom.options)
      if (!is_schedule(atom.name) && !(zero > 0 && option == "within"))
        return user_error(fmt::format("{} has no option '{}'", atom.name, option), "",
                          "options belong to schedules, as in interleaved:4,v=3, and to sharding, "
                          "as in zero3:4,within=2");
    if (pipeline) {
      pipelined = &atom;
    } else if (data) {
      replicated = &atom;
      shape.replicas *= atom.count;
      shape.zero = zero;
      if (const auto within = atom.options.find("within"); within != atom.options.end())
        shape.shard_within = within->second;
    } else if (tensor) {
      tensors = &atom;
      shape.tensor = atom.count;
      shape.sequence = atom.name == "sp";
    } else if (expert) {
      experts = &atom;
      shape.experts = atom.count;
    }
  }
  if (shape.experts % shape.tensor != 0 && experts)
    return user_error(
        fmt::format("in '{}' {} devices in a row share the experts, and each {} the rows",
                    expression, shape.experts, shape.tensor),
        "", fmt::format("choose a multiple of {} for ep", shape.tensor));
  if (experts)
    shape.replicas *= shape.experts / shape.tensor;
  const bool has_experts = std::any_of(model.calls.begin(), model.calls.end(),
                                       [](const auto& call) { return call.cut == Cut::Experts; });
  if (shape.experts > 1 && !has_experts)
    return user_error(fmt::format("'{}' shares experts, but the model has none", expression),
                      fmt::format("model {}", model.name), "use dp in place of ep");

  const int64_t microbatches = schedule.microbatches;
  if (model.batch % shape.replicas != 0)
    return user_error(fmt::format("the batch of {} rows is not divisible over {} replicas",
                                  model.batch, shape.replicas),
                      "", fmt::format("choose a batch that is a multiple of {}", shape.replicas));
  if (microbatches % shape.replicas != 0)
    return user_error(
        fmt::format("{} microbatches of the global batch do not divide over {} replicas",
                    microbatches, shape.replicas),
        "", fmt::format("choose a multiple of {}", shape.replicas));
  shape.microbatches = microbatches > 0 ? microbatches / shape.replicas
                                        : choose_microbatches(model.batch / shape.replicas,
                                                              pipelined ? pipelined->count : 1);
  if (!schedule.table.empty() && (!pipelined || pipelined->name != "table"))
    return user_error(fmt::format("a table is given, but '{}' does not name it", expression), "",
                      "the name that stands for it is table, as in dp:2xtable");
  Strategy strategy;
  if (!pipelined) {
    strategy = data_parallel(shape);
  } else if (pipelined->name == "table") {
    PIPER_TRY(const ScheduleTable table, given_table(schedule));
    if (microbatches > 0 && table.microbatches() != shape.microbatches)
      return user_error(fmt::format("the table has {} microbatches, not {}", table.microbatches(),
                                    shape.microbatches),
                        "", "leave out the number of microbatches: the table says it");
    PIPER_TRY(strategy, pipeline(shape, table));
  } else {
    PIPER_TRY(const ScheduleTable table, named_schedule(pipelined->name, pipelined->count,
                                                        shape.microbatches, pipelined->options));
    PIPER_TRY(strategy, pipeline(shape, table));
  }
  strategy.name = expression;
  return strategy;
}

} // namespace piper::compiler
