#include "tests/compiler/terms.h"

#include <bit>

namespace piper::test {

using namespace ir;

namespace {
enum Kind : int64_t { kSum = -1, kShare = -2, kColumns = -3, kGarbage = -4 };
}

uint32_t Terms::of(std::vector<int64_t> key) {
  const auto [entry, fresh] =
      numbers_.try_emplace(std::move(key), static_cast<uint32_t>(numbers_.size()));
  if (fresh)
    keys_.push_back(&entry->first);
  return entry->second;
}

uint32_t Terms::of(const Form& form) {
  std::vector<int64_t> key = {kSum};
  for (const auto& [term, coefficient] : form)
    if (coefficient != 0) {
      key.push_back(term);
      key.push_back(std::bit_cast<int64_t>(coefficient));
    }
  if (key.size() == 3 && std::bit_cast<double>(key[2]) == 1)
    return static_cast<uint32_t>(key[1]);
  return of(std::move(key));
}

uint32_t Terms::of(const Share& share) {
  return of({kShare, static_cast<int64_t>(share.layout), share.rank, share.ways,
             int64_t{share.whole}, share.source, share.counts});
}

std::optional<Share> Terms::share_of(uint32_t term) const {
  const std::vector<int64_t>& key = *keys_[term];
  if (key[0] != kShare)
    return std::nullopt;
  return Share{static_cast<Layout>(key[1]),   key[2], key[3],
               static_cast<uint32_t>(key[4]), key[5], key[6]};
}

uint32_t Terms::columns(int64_t rank, const std::vector<uint32_t>& counts) {
  std::vector<int64_t> key = {kColumns, rank};
  key.insert(key.end(), counts.begin(), counts.end());
  return of(std::move(key));
}

std::optional<uint32_t> Terms::line_of(uint32_t columns, int64_t rank, int64_t sources,
                                       int64_t source) const {
  const std::vector<int64_t>& key = *keys_[columns];
  if (key[0] != kColumns || key[1] != rank || static_cast<int64_t>(key.size()) != sources + 2)
    return std::nullopt;
  return static_cast<uint32_t>(key[static_cast<size_t>(source) + 2]);
}

uint32_t Terms::garbage(std::vector<int64_t> what) {
  what.insert(what.begin(), kGarbage);
  return of(std::move(what));
}

Form joined(Terms& terms, const Form& form, Layout layout) {
  Form out = form;
  for (const auto& [term, coefficient] : form) {
    std::optional<Share> share = terms.share_of(term);
    if (!share || share->layout != layout || share->rank != 0)
      continue;
    std::vector<uint32_t> all;
    for (; share->rank < share->ways; ++share->rank) {
      const auto theirs = form.find(terms.of(*share));
      if (theirs != form.end() && theirs->second == coefficient)
        all.push_back(theirs->first);
    }
    if (all.size() < static_cast<size_t>(share->ways))
      continue;
    for (uint32_t each : all)
      out.erase(each);
    out[share->whole] += coefficient;
  }
  return out;
}

Form shared(Terms& terms, const Form& form, const Share& like) {
  if (like.ways == 1 && like.layout != Layout::Experts)
    return form;
  Form out;
  for (const auto& [term, coefficient] : form) {
    Share share = like;
    share.whole = term;
    out[terms.of(share)] += coefficient;
  }
  return out;
}

namespace {

Form sum_of(Terms& terms, const std::vector<Form>& brought) {
  Form sum;
  for (const Form& form : brought)
    add(sum, form);
  return joined(terms, sum, Layout::Partial);
}

/// The pieces side by side: each is taken for that of the rank that brings it.
Form gathered(Terms& terms, const std::vector<Form>& brought) {
  const auto ways = static_cast<int64_t>(brought.size());
  Form all;
  for (int64_t rank = 0; rank < ways; ++rank)
    for (const auto& [term, coefficient] : brought[static_cast<size_t>(rank)]) {
      const auto share = terms.share_of(term);
      const bool right =
          share && share->layout == Layout::Tokens && share->rank == rank && share->ways == ways;
      all[right ? term : terms.garbage({rank, ways, int64_t{term}})] += coefficient;
    }
  return joined(terms, all, Layout::Tokens);
}

/// From every source its rows for the rank's experts, if both ends know how many these are. Of the
/// ranks of a source the one at the receiver's place sends them.
Form rows_for(Terms& terms, int64_t rank, int64_t outside, const std::vector<Form>& brought,
              const std::vector<Counts>& counts) {
  const auto ways = static_cast<int64_t>(brought.size());
  const uint32_t expected = counts[static_cast<size_t>(rank)].received;
  Form rows;
  for (int64_t source = 0; source < ways / outside; ++source) {
    const auto sender = static_cast<size_t>(source * outside + rank % outside);
    const uint32_t sent = counts[sender].sent;
    const Form& its = brought[sender];
    if (terms.line_of(expected, rank, ways / outside, source) == sent)
      add(rows, shared(terms, its, {Layout::Experts, rank, ways, 0, source, int64_t{sent}}));
    else
      rows[terms.garbage(
          {rank, source, int64_t{terms.of(its)}, int64_t{sent}, int64_t{expected}})] += 1;
  }
  return rows;
}

/// A rank's own rows again, from those whose experts they went to.
Form rows_of(Terms& terms, int64_t receiver, int64_t outside, const std::vector<Form>& brought,
             const std::vector<Counts>& counts) {
  const auto ways = static_cast<int64_t>(brought.size());
  const int64_t source = receiver / outside;
  const uint32_t expected = counts[static_cast<size_t>(receiver)].received;
  Form rows;
  for (int64_t rank = 0; rank < ways; ++rank) {
    const uint32_t sent = counts[static_cast<size_t>(rank)].sent;
    const bool agreed = terms.line_of(sent, rank, ways / outside, source) == expected;
    for (const auto& [term, coefficient] : brought[static_cast<size_t>(rank)]) {
      const auto share = terms.share_of(term);
      const bool rows_there =
          share && share->layout == Layout::Experts && share->rank == rank && share->ways == ways;
      if (rows_there && share->source != source)
        continue; // go to others
      const bool right = rows_there && agreed && share->counts == int64_t{expected};
      rows[right
               ? terms.of(Share{Layout::Experts, rank, ways, share->whole})
               : terms.garbage({rank, source, int64_t{term}, int64_t{sent}, int64_t{expected}})] +=
          coefficient;
    }
  }
  return joined(terms, rows, Layout::Experts);
}

} // namespace

std::vector<Form> move_within_block(Terms& terms, Move move, bool to_experts, int64_t outside,
                                    const std::vector<Form>& brought,
                                    const std::vector<Counts>& counts) {
  const auto ways = static_cast<int64_t>(brought.size());
  std::vector<Form> moved;
  for (int64_t rank = 0; rank < ways; ++rank)
    switch (move) {
    case Move::Slice:
      moved.push_back(
          shared(terms, brought[static_cast<size_t>(rank)], {Layout::Tokens, rank, ways}));
      break;
    case Move::AllReduce:
      moved.push_back(sum_of(terms, brought));
      break;
    case Move::ReduceScatter:
      moved.push_back(shared(terms, sum_of(terms, brought), {Layout::Tokens, rank, ways}));
      break;
    case Move::AllGather:
      moved.push_back(gathered(terms, brought));
      break;
    case Move::AllToAll: {
      if (!counts.empty()) {
        moved.push_back(to_experts ? rows_for(terms, rank, outside, brought, counts)
                                   : rows_of(terms, rank, outside, brought, counts));
        break;
      }
      std::vector<uint32_t> lines;
      for (size_t source = 0; source < brought.size(); source += static_cast<size_t>(outside))
        lines.push_back(terms.of(brought[source]));
      const uint32_t columns = terms.columns(rank, lines);
      moved.push_back({{to_experts ? columns : terms.garbage({int64_t{columns}}), 1}});
    }
    }
  return moved;
}

} // namespace piper::test
