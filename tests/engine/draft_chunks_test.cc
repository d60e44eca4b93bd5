// A drafter's proposals after a prefill in chunks are bit for bit those after a prefill in one
// pass: its cache holds the same, chunk ends included.
#include <gtest/gtest.h>

#include "engine/engine_harness.h"
#include "speculative/head_drafter.h"

namespace foresail {
namespace {

struct Proposed {
  std::vector<float> state;
  std::vector<float> logits;
  bool operator==(const Proposed&) const = default;
};

// Everything that was proposed from the last chunk on, a pass over a chunk proposing once.
std::vector<Proposed> proposals(LoadedModel& model, const EngineOptions& options,
                                const Request& request) {
  std::vector<Proposed> all;
  dynamic_cast<HeadDrafter&>(*model.drafter())
      .observe([&](const HeadDrafter::Proposal& proposal, std::span<const float> logits) {
        all.push_back({proposal.state, {logits.begin(), logits.end()}});
      });
  EngineLoop loop(model, nullptr, options);
  serve(loop, {request});
  const auto prompt_len = static_cast<int64_t>(request.input_ids.size());
  const int64_t chunk = options.chunked_prefill_size;
  all.erase(all.begin(), all.begin() + (prompt_len - 1) / chunk);
  return all;
}

TEST(DraftChunks, ProposalsDoNotDependOnTheCut) {
  struct Case {
    const char* golden;
    SpeculativeAlgorithm algorithm;
  };
  for (const Case& c : {Case{"g13_v3_mtp", SpeculativeAlgorithm::kMtp},
                        Case{"g14_eagle3_llama", SpeculativeAlgorithm::kEagle3},
                        Case{"g15_eagle3_mla", SpeculativeAlgorithm::kEagle3}}) {
    EngineOptions options = tiny_options(c.golden, c.algorithm, 1);
    options.speculative.steps = 3;
    LoadedModel model(options);
    Request request = random_requests(77, 2)[1];  // behind a shared prefix of 70 tokens
    request.max_tokens = 6;
    request.ignore_eos = true;
    request.sampling = {.temperature = 0.0f};
    options.chunked_prefill_size = 2048;
    const std::vector<Proposed> whole = proposals(model, options, request);
    ASSERT_GT(whole.size(), 6u);
    for (const int64_t chunk : {1, 2, 7, 16, 33, 64}) {
      options.chunked_prefill_size = chunk;
      EXPECT_TRUE(proposals(model, options, request) == whole) << c.golden << " chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace foresail
