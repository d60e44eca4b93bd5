#include "scheduler/prefill_budget.h"

#include <algorithm>

namespace foresail {
namespace {

// How far a chunk that starts at `from` may go with `share` tokens.
Tokens chunk_end(Tokens from, Tokens length, Tokens share, bool page_fits, PageSize page_size) {
  const Tokens end = std::min(from + share, length);
  if (end == length) return end;
  const Tokens border = tokens_in(full_pages(end, page_size), page_size);
  if (border > from) return border;
  return page_fits ? from : end;
}

}  // namespace

std::vector<Tokens> split_prefill_budget(std::span<const PrefillClaim> claims, Tokens budget,
                                         PageSize page_size, bool head_first) {
  std::vector<Tokens> ends;
  for (const PrefillClaim& claim : claims) ends.push_back(claim.begin);
  if (claims.empty()) return ends;

  const bool page_fits = budget.value >= page_size.tokens();
  Tokens left = budget;
  const auto give = [&](size_t index, Tokens share) {
    const Tokens from = ends[index];
    ends[index] = chunk_end(from, claims[index].length, share, page_fits, page_size);
    left -= ends[index] - from;
  };
  const auto give_head = [&](Tokens share) { give(0, std::min(share, left)); };

  std::vector<size_t> others;
  for (size_t i = 1; i < claims.size(); ++i) others.push_back(i);
  std::stable_sort(others.begin(), others.end(), [&](size_t a, size_t b) {
    if (claims[a].priority != claims[b].priority) return claims[a].priority > claims[b].priority;
    return claims[a].length - claims[a].begin < claims[b].length - claims[b].begin;
  });

  const Tokens half{budget.value / 2};
  const Tokens least{std::max<int64_t>(1, page_fits ? page_size.tokens() : 1)};
  const bool can_halve = half >= least;
  if (others.empty()) {
    give_head(left);
  } else if (can_halve) {
    give_head(half);
  } else if (head_first) {
    give_head(left);
  }
  for (size_t index : others) give(index, left);
  // Below a page, a chunk that has come to a border stays there.
  if (page_fits || ends[0] == claims[0].begin) give_head(left);
  return ends;
}

}  // namespace foresail
