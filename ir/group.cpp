#include "ir/group.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

namespace piper::ir {

namespace {
constexpr std::array kLayouts = {"whole", "partial", "tokens", "weights", "experts"};
static_assert(kLayouts.size() == static_cast<size_t>(Layout::Experts) + 1);

/// Every rank has another summand of the gradients.
constexpr bool sums_in_block(Layout layout) {
  return layout == Layout::Partial || layout == Layout::Tokens;
}
} // namespace

const char* to_string(Layout layout) {
  return kLayouts[static_cast<size_t>(layout)];
}

std::optional<Layout> parse_layout(std::string_view text) {
  const auto found = std::find(kLayouts.begin(), kLayouts.end(), text);
  if (found == kLayouts.end())
    return std::nullopt;
  return static_cast<Layout>(found - kLayouts.begin());
}

int64_t Group::shares() const {
  if (!replicated)
    return 1;
  return static_cast<int64_t>(size() / (layout == Layout::Experts ? outside : ways));
}

int64_t Group::share(int rank) const {
  if (!replicated)
    return 0;
  return rank / static_cast<int>(layout == Layout::Experts ? outside : ways);
}

uint32_t Group::copies() const {
  return static_cast<uint32_t>(sums_in_block(layout) ? size() : size() / ways);
}

uint32_t Group::copy(int rank) const {
  return static_cast<uint32_t>(rank) / (sums_in_block(layout) ? 1 : ways);
}

std::vector<DeviceIndex> Group::block_of(int rank) const {
  const auto first = devices.begin() + rank / static_cast<int>(ways) * static_cast<int>(ways);
  return {first, first + ways};
}

Group Group::whole() const {
  Group group = *this;
  group.layout = Layout::Whole;
  if (layout == Layout::Experts)
    group.ways = std::exchange(group.outside, 1);
  return group;
}

namespace {
std::optional<Move> move_between(Layout from, Layout to) {
  switch (from) {
  case Layout::Whole:
    if (to == Layout::Tokens)
      return Move::Slice;
    return to == Layout::Experts ? std::optional(Move::AllToAll) : std::nullopt;
  case Layout::Partial:
    if (to == Layout::Whole)
      return Move::AllReduce;
    return to == Layout::Tokens ? std::optional(Move::ReduceScatter) : std::nullopt;
  case Layout::Tokens:
    return to == Layout::Whole ? std::optional(Move::AllGather) : std::nullopt;
  case Layout::Experts:
    return to == Layout::Whole ? std::optional(Move::AllToAll) : std::nullopt;
  case Layout::Weights:
    break; // runs calls; no value has it
  }
  return std::nullopt;
}
} // namespace

std::optional<Move> move_between(const Group& from, const Group& to) {
  const auto move = move_between(from.layout, to.layout);
  if (move == Move::AllToAll) {
    const auto& [experts, rows] =
        from.layout == Layout::Experts ? std::tie(from, to) : std::tie(to, from);
    return experts.devices == rows.devices && rows.ways == experts.outside ? move : std::nullopt;
  }
  return move && from.same_blocks(to) ? move : std::nullopt;
}

TensorType type_on(const Group& group, const ModelValue& value) {
  TensorType type = value.type;
  if (group.layout == Layout::Tokens && type.dims.size() > 1)
    type.dims[1] /= group.ways;
  if (group.layout == Layout::Experts) {
    if (value.is_counts) { // a line a source
      type.dims[0] *= group.ways / group.outside;
      type.dims[1] /= group.ways;
    } else if (!type.dims.empty()) { // as many rows as it has on average
      type.dims[0] = (type.dims[0] + group.outside - 1) / group.outside;
    }
  }
  return type;
}

TensorType type_on(const Group& group, const ModelParam& param) {
  TensorType type = param.type;
  if (param.cut >= 0)
    type.dims[param.cut] /= group.parts();
  return type;
}

} // namespace piper::ir
