// Plans travel as fragments of their text, addressed by content: what a device already has is not
// sent again, and two epochs share what they have in common.
#pragma once

#include "actors/protocol.h"
#include "ir/plan.h"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace piper::actors {

/// The plans with all but `role`'s left empty: what a device of that role has to know.
ir::PlanSet only_role(const ir::PlanSet& plans, ir::RoleId role);

/// Cuts at line ends that the text before them chooses (content-defined chunking, Muthitacharoen
/// et al., SOSP 2001), so that an edit changes only the fragments around it. Fragments are at most
/// kMaxFragment bytes, unless a single line is longer; joined they are the text.
std::vector<PlanFragment> cut(std::string_view text);
inline constexpr size_t kMaxFragment = 64 * 1024;

/// All that the manifests name.
std::set<ir::Fingerprint> names(const std::vector<Manifest>& manifests);

/// What one device has.
class FragmentStore {
public:
  /// Refuses a fragment whose text does not have its fingerprint.
  Result<void> add(PlanFragment fragment);
  bool has(const ir::Fingerprint& id) const { return texts_.count(id) != 0; }
  size_t size() const { return texts_.size(); }
  /// The text. An Internal error if a fragment is missing.
  Result<std::string> assemble(const Manifest& manifest) const;
  /// Forgets what no manifest names.
  void keep_only(const std::vector<Manifest>& manifests);

private:
  std::map<ir::Fingerprint, std::string> texts_;
};

} // namespace piper::actors
