// Entry p of a drafter's cache pairs token p + 1 with target state p. Off by one, nothing breaks
// but acceptance, and random weights accept nothing anyway: so this is tested on a trained pair.
#include <gtest/gtest.h>

#include "engine/loaded_model.h"
#include "speculative/iteration.h"
#include "text/tokenizer.h"

namespace foresail {
namespace {

// Pairs token p with state p instead.
class ShiftedDrafter : public Drafter {
 public:
  explicit ShiftedDrafter(Drafter& inner) : inner_(inner) {}
  std::string_view name() const override { return "shifted"; }
  std::vector<int> target_layers() const override { return inner_.target_layers(); }
  void extend(std::span<const ExtendRows> rows, const MatrixView& states) override {
    std::vector<ExtendRows> shifted(rows.begin(), rows.end());
    for (ExtendRows& item : shifted)
      item.next_tokens = item.request.tokens.subspan(item.first_position, item.next_tokens.size());
    inner_.extend(shifted, states);
  }
  void draft(std::span<const DraftRequest> requests,
             std::span<std::vector<int32_t>> drafts) override {
    inner_.draft(requests, drafts);
  }

 private:
  Drafter& inner_;
};

double accept_length(LoadedModel& model, Drafter& drafter, const std::vector<int32_t>& prompt) {
  Iteration iteration(model.model(), model.store(), model.planner(), &drafter, {});
  std::vector<int32_t> page_table;
  for (int64_t page = 1; page <= model.pages_per_slot(); ++page)
    page_table.push_back(static_cast<int32_t>(page));
  RequestState request;
  request.page_table = page_table.data();
  request.tokens = prompt;
  request.sampling.temperature = 0.8f;
  request.sampling.seed = 5;
  request.draft_steps = 3;
  const PrefillRows rows{&request, 0, static_cast<int32_t>(prompt.size())};
  RequestState* const running[] = {&request};
  iteration.prefill({&rows, 1});
  iteration.draft(running);
  int accepted = 0;
  constexpr int kPasses = 150;
  for (int pass = 0; pass < kPasses; ++pass) accepted += iteration.decode(running)[0].accepted;
  return 1.0 + static_cast<double>(accepted) / kPasses;
}

TEST(DraftShift, OffByOneLowersAcceptanceSharply) {
  const std::string root = FORESAIL_SOURCE_DIR;
  const auto tokenizer = Tokenizer::load(root + "/models/tales");
  const std::vector<int32_t> prompt = tokenizer->encode(
      "The two friends walked slowly along the road, and the elder began to speak of the strange "
      "man "
      "whom they had met upon the bridge that morning.",
      {.add_bos = true});
  for (const auto algorithm : {SpeculativeAlgorithm::kMtp, SpeculativeAlgorithm::kEagle3}) {
    EngineOptions options;
    options.model_path = root + "/models/tales";
    options.speculative.algorithm = algorithm;
    options.speculative.draft_model_path = root + "/models/tales-eagle3";
    options.speculative.steps = 3;
    LoadedModel model(options);
    ShiftedDrafter shifted(*model.drafter());
    const double right = accept_length(model, *model.drafter(), prompt);
    const double wrong = accept_length(model, shifted, prompt);
    EXPECT_GT(right, 1.8) << model.drafter()->name();
    EXPECT_LT(wrong - 1.0, 0.5 * (right - 1.0))
        << model.drafter()->name() << " right " << right << " wrong " << wrong;
  }
}

}  // namespace
}  // namespace foresail
