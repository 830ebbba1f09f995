#include "actors/plan_fragments.h"

namespace piper::actors {

ir::PlanSet only_role(const ir::PlanSet& plans, ir::RoleId role) {
  ir::PlanSet reduced = plans;
  for (size_t i = 0; i < reduced.plans.size(); ++i)
    if (i != role.value)
      reduced.plans[i] = {};
  return reduced;
}

std::vector<PlanFragment> cut(std::string_view text) {
  // A line ends a fragment with probability 1/32: a few KiB each.
  constexpr uint64_t kMask = 31;
  std::vector<PlanFragment> fragments;
  size_t begin = 0, at = 0;
  auto flush = [&](size_t end) {
    if (end == begin)
      return;
    std::string piece(text.substr(begin, end - begin));
    auto id = ir::fingerprint(piece);
    fragments.push_back({id, std::move(piece)});
    begin = end;
  };
  while (at < text.size()) {
    size_t newline = text.find('\n', at);
    size_t next = newline == std::string_view::npos ? text.size() : newline + 1;
    if (next - begin > kMaxFragment)
      flush(at);
    if ((ir::fingerprint(text.substr(at, next - at)).low & kMask) == 0)
      flush(next);
    at = next;
  }
  flush(text.size());
  return fragments;
}

Result<void> FragmentStore::add(PlanFragment fragment) {
  if (ir::fingerprint(fragment.text) != fragment.id)
    return internal_error("plan fragment " + fragment.id.to_string() + " arrived damaged");
  texts_.insert_or_assign(fragment.id, std::move(fragment.text));
  return {};
}

Result<std::string> FragmentStore::assemble(const Manifest& manifest) const {
  std::string text;
  for (const auto& id : manifest) {
    auto found = texts_.find(id);
    if (found == texts_.end())
      return internal_error("plan fragment " + id.to_string() + " is missing");
    text += found->second;
  }
  return text;
}

void FragmentStore::keep_only(const std::vector<Manifest>& manifests) {
  auto wanted = names(manifests);
  std::erase_if(texts_, [&](const auto& entry) { return !wanted.count(entry.first); });
}

std::set<ir::Fingerprint> names(const std::vector<Manifest>& manifests) {
  std::set<ir::Fingerprint> all;
  for (const auto& manifest : manifests)
    all.insert(manifest.begin(), manifest.end());
  return all;
}

} // namespace piper::actors
