#include "compiler/strategies/strategies.h"

#include <fmt/format.h>

namespace piper::compiler {

using namespace ir;

namespace {

/// The only index of a term; none if it matches more.
const TagIndex* only_index(const Filter& filter, const std::string& tag) {
  for (const auto& [name, match] : filter.terms)
    if (name == tag && match.indices.size() == 1)
      return &match.indices[0];
  return nullptr;
}

/// The action that a filter names, if it names exactly one.
std::optional<Action> action_of(const Filter& filter, const std::string& microbatch_tag) {
  const TagIndex *stage = only_index(filter, "stage"), *pass = only_index(filter, "PASS"),
                 *microbatch = only_index(filter, microbatch_tag);
  if (filter.terms.size() != 3 || !stage || !pass || !microbatch)
    return {};
  const auto* s = std::get_if<int64_t>(stage);
  const auto* m = std::get_if<int64_t>(microbatch);
  const auto* name = std::get_if<std::string>(pass);
  if (!s || !m || !name)
    return {};
  const char letter = *name == "BI"       ? 'I'
                      : *name == "BW"     ? 'W'
                      : name->size() == 1 ? (*name)[0]
                                          : 0;
  if (letter == 0)
    return {};
  return Action{static_cast<int>(*s), letter, *m};
}

} // namespace

Result<ScheduleTable> schedule_of(const Strategy& expanded) {
  std::string microbatch_tag;
  for (const Directive& directive : expanded.directives)
    if (const auto* split = std::get_if<Split>(&directive.body))
      microbatch_tag = split->dim;
  std::vector<std::vector<Step>> rows;
  for (size_t d = 0; d < expanded.directives.size(); ++d) {
    const auto* order = std::get_if<Order>(&expanded.directives[d].body);
    if (!order)
      continue;
    std::vector<Step>& row = rows.emplace_back();
    for (const auto& group : order->groups) {
      std::vector<Action> actions;
      for (const Filter& filter : group)
        if (const auto action = action_of(filter, microbatch_tag))
          actions.push_back(*action);
      if (actions.size() != group.size() || actions.size() > 2)
        return user_error("a group of this order is no pass of a microbatch through a stage",
                          expanded.describe(d),
                          R"(a schedule's groups are like [{"stage": 0, "PASS": "F", "MB": 0}])");
      row.push_back(actions.size() == 2 ? Step(actions[0], actions[1]) : Step(actions[0]));
    }
  }
  if (rows.empty())
    return user_error("the strategy is no pipeline schedule: it orders nothing",
                      expanded.name.empty() ? "strategy" : expanded.name,
                      "use a builder such as 1f1b:2, or one order a device");
  ScheduleTable table(std::move(rows));
  PIPER_CHECK_OK(table.check());
  return table;
}

} // namespace piper::compiler
