// The ways of drafting that the whole engine is run through, and the cases that tests make of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "engine/engine_harness.h"

namespace foresail {

struct Drafting {
  std::string name;
  std::string golden;
  SpeculativeAlgorithm algorithm;
};

// The heads, whose draft loop can run behind the verify pass; none; the others that propose by
// themselves; what a test scripts.
inline const Drafting kDraftings[] = {
    {"mtp", "g13_v3_mtp", SpeculativeAlgorithm::kMtp},
    {"eagle3_llama", "g14_eagle3_llama", SpeculativeAlgorithm::kEagle3},
    {"eagle3_mla", "g15_eagle3_mla", SpeculativeAlgorithm::kEagle3},
    {"none", "g15_eagle3_mla", SpeculativeAlgorithm::kNone},
    {"ngram", "g13_v3_mtp", SpeculativeAlgorithm::kNgram},
    {"self", "g01_v3_yarn", SpeculativeAlgorithm::kStandalone},
    {"right", "g13_v3_mtp", SpeculativeAlgorithm::kNone},
    {"wrong", "g14_eagle3_llama", SpeculativeAlgorithm::kNone},
};
constexpr int kHeadDraftings = 3, kUnscriptedDraftings = 6, kAllDraftings = 8;

inline EngineOptions tiny_options(const Drafting& drafting, int page_size) {
  return tiny_options(drafting.golden, drafting.algorithm, page_size);
}

// An index into kDraftings, a page size, an attention backend.
using DraftingCase = std::tuple<int, int, std::string>;

inline auto drafting_cases(int draftings, const std::vector<int>& page_sizes) {
  return testing::Combine(testing::Range(0, draftings), testing::ValuesIn(page_sizes),
                          testing::Values(std::string("paged"), std::string("indexed")));
}

inline std::string drafting_case_name(const testing::TestParamInfo<DraftingCase>& test) {
  const auto& [index, page_size, backend] = test.param;
  return kDraftings[index].name + "_page" + std::to_string(page_size) + "_" + backend;
}

}  // namespace foresail
