// Drafts by looking back: the longest recent suffix of the text that occurred before is assumed to
// go on as it did then (prompt lookup). No network, no state.
#pragma once

#include "speculative/drafter.h"

namespace foresail {

class NgramDrafter : public Drafter {
 public:
  NgramDrafter(int longest_suffix, int shortest_suffix)
      : longest_suffix_(longest_suffix), shortest_suffix_(shortest_suffix) {}
  std::string_view name() const override { return "ngram"; }
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override;

 private:
  int longest_suffix_, shortest_suffix_;
};

}  // namespace foresail
