// What the symbolic machine computes with: terms, sums of them, and the shares that the ranks of a
// block have of them.
#pragma once

#include "ir/group.h"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace piper::test {

/// A linear combination of terms. Sums of it don't depend on their order.
using Form = std::map<uint32_t, double>;

inline void add(Form& to, const Form& what, double factor = 1) {
  for (const auto& [term, coefficient] : what)
    to[term] += factor * coefficient;
}

/// What rank `rank` of a block of `ways` has of a term in a layout. Of Weights: the piece of a
/// parameter or of its gradient. Of Experts: the rows that go to the rank's experts by `counts`,
/// and come from the ranks of the block that are source `source`.
struct Share {
  ir::Layout layout = ir::Layout::Whole;
  int64_t rank = 0, ways = 1;
  uint32_t whole = 0;
  int64_t source = -1, counts = -1;
};

/// Terms are numbered so that equal ones have equal numbers. Share one table among all runs that
/// are compared.
class Terms {
public:
  Terms() = default;
  Terms(Terms&&) = default;
  Terms(const Terms&) = delete; // keys_ points into numbers_

  /// `key` begins with a number that tells apart what it is of; negative ones are this file's.
  uint32_t of(std::vector<int64_t> key);
  /// The sum as one term: that which it consists of, if it is one, once.
  uint32_t of(const Form& form);
  uint32_t of(const Share& share);
  std::optional<Share> share_of(uint32_t term) const; ///< none if it is no share

  /// The columns of counts that go to a rank's experts: a line of each source.
  uint32_t columns(int64_t rank, const std::vector<uint32_t>& counts);
  /// The line of `source` in what rank `rank` has of all; none if it is something else.
  std::optional<uint32_t> line_of(uint32_t columns, int64_t rank, int64_t sources,
                                  int64_t source) const;
  /// What comes of mixing up places or counts: equal to nothing that is right.
  uint32_t garbage(std::vector<int64_t> what);

private:
  std::map<std::vector<int64_t>, uint32_t> numbers_;
  std::vector<const std::vector<int64_t>*> keys_; ///< of each term
};

/// The form, with shares in `layout` that all ranks have as often turned into what they are of.
Form joined(Terms& terms, const Form& form, ir::Layout layout);
/// What a rank has of each term of the form.
Form shared(Terms& terms, const Form& form, const Share& like);

/// Of an all-to-all: the counts where the value comes from and where it goes, as terms.
struct Counts {
  uint32_t sent = 0, received = 0;
};
/// What a collective within a block makes of what its ranks bring; both by rank. Of an all-to-all,
/// to experts or back: `outside` ranks in a row share rows and are one source; `counts` of the
/// rows, empty if it moves the counts themselves.
std::vector<Form> move_within_block(Terms& terms, ir::Move move, bool to_experts, int64_t outside,
                                    const std::vector<Form>& brought,
                                    const std::vector<Counts>& counts);

} // namespace piper::test
