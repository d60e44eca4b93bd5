#include "speculative/ngram_drafter.h"

#include <algorithm>

namespace foresail {
namespace {

// Position after the most recent earlier occurrence of the last `suffix_len` tokens; 0: none.
size_t continuation(std::span<const int32_t> tokens, size_t suffix_len) {
  const auto suffix = tokens.last(suffix_len);
  for (size_t end = tokens.size() - 1; end >= suffix_len; --end)
    if (std::equal(suffix.begin(), suffix.end(),
                   tokens.begin() + static_cast<int64_t>(end - suffix_len)))
      return end;
  return 0;
}

}  // namespace

void NgramDrafter::draft(std::span<const DraftRequest> requests,
                         std::span<std::vector<int32_t>> drafts) {
  for (size_t i = 0; i < requests.size(); ++i) {
    drafts[i].clear();
    const std::span<const int32_t> tokens = requests[i].tokens;
    for (int suffix_len = longest_suffix_; suffix_len >= shortest_suffix_; --suffix_len) {
      if (tokens.size() <= static_cast<size_t>(suffix_len)) continue;
      const size_t next = continuation(tokens, suffix_len);
      if (next == 0) continue;
      // Past the end of the text it reads its own guess: a loop goes on however short it is.
      for (size_t at = next; drafts[i].size() < static_cast<size_t>(requests[i].steps); ++at)
        drafts[i].push_back(at < tokens.size() ? tokens[at] : drafts[i][at - tokens.size()]);
      break;
    }
  }
}

}  // namespace foresail
