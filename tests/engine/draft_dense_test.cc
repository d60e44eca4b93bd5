// The draft loop's numbers: paged, one row per step, recycled states, against the same head run
// over all L + i + 1 positions at once in float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "attention/pass_planner.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "engine/engine_harness.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/ref/ref_kernels.h"
#include "model/mtp_head.h"
#include "runtime/latent_store.h"
#include "speculative/head_drafter.h"

namespace foresail {
namespace {

constexpr int kHidden = 64;
constexpr int kSteps = 7;

// A model with its MTP head on a kernel set of its own.
struct Head {
  explicit Head(std::unique_ptr<KernelSet> set) : kernels(std::move(set)) {
    const std::string path = golden_path("g13_v3_mtp");
    const ModelConfig config = read_model_config(path);
    const auto source = open_checkpoint(path, config);
    WeightLoader loader(*source, *kernels);
    model = std::make_unique<MlaModel>(config, loader, *kernels, 256);
    head = std::make_unique<MtpHead>(*model, loader, 0);
  }
  std::unique_ptr<KernelSet> kernels;
  std::unique_ptr<MlaModel> model;
  std::unique_ptr<DraftHead> head;
};

struct Step {
  std::vector<float> state;
  std::vector<float> logits;
  int32_t token = 0;
};

void expect_close(std::span<const float> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-4) << "column " << i;
}

std::span<const float> row_of(const MatrixView& matrix) {
  return {static_cast<const float*>(matrix.data), static_cast<size_t>(matrix.cols)};
}

// T1: L one before, on and one after a page border; the chain crosses it too.
TEST(DraftDense, EveryStepEqualsOnePassInFloat64) {
  ThreadPool threads(1);
  Head dense(create_ref_kernels(DType::kF32));
  const CacheShape shape = dense.head->cache_shapes()[0];
  for (const auto& [backend, page_size] : {std::pair{AttentionBackend::kPaged, 1},
                                           {AttentionBackend::kPaged, 16},
                                           {AttentionBackend::kPaged, 64},
                                           {AttentionBackend::kIndexed, 16}}) {
    std::vector<int> lengths = {page_size - 1, page_size, page_size + 1};
    if (page_size == 1) lengths = {1, 2, 9};
    for (const int length : lengths) {
      SCOPED_TRACE(fmt::format("page {} length {}", page_size, length));
      std::mt19937_64 random(100 * page_size + length);
      std::vector<int32_t> tokens(length + 1);  // the bonus token last
      for (int32_t& token : tokens) token = 3 + static_cast<int32_t>(random() % 317);
      std::vector<float> states(length * kHidden);
      for (float& x : states) x = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;

      Head paged(create_cpu_kernels({.dtype = DType::kF32, .isa = "auto", .pool = &threads}));
      PassPlanner planner({.backend = backend, .page_size = page_size}, paged.model->config());
      HeadDrafter drafter("mtp", std::move(paged.head), planner, 1, 200, {DType::kF32});
      std::vector<Step> steps;
      drafter.observe([&](const HeadDrafter::Proposal& proposal, std::span<const float> logits) {
        steps.push_back({proposal.state, {logits.begin(), logits.end()}, proposal.token});
      });
      std::vector<int32_t> table;
      for (int page = 0; page < 128 / page_size; ++page) table.push_back(128 / page_size - page);
      const SamplingParams greedy{.temperature = 0.0f};
      const DraftRequest request{0, table.data(), tokens, &greedy, kSteps};
      const ExtendRows rows{request, 0, std::span<const int32_t>(tokens).subspan(1), 0};
      drafter.extend({&rows, 1}, {states.data(), DType::kF32, length, kHidden, kHidden});
      std::vector<std::vector<int32_t>> drafts(1);
      drafter.draft({&request, 1}, drafts);
      ASSERT_EQ(steps.size(), size_t{kSteps});
      ASSERT_EQ(drafts[0].size(), size_t{kSteps});

      std::vector<int32_t> next(tokens.begin() + 1, tokens.end());
      std::vector<float> inputs = states;
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_EQ(drafts[0][step], steps[step].token);
        const auto count = static_cast<int32_t>(next.size());
        LatentStore store(1, 2, 256, shape.latent_dim, shape.rope_dim, {DType::kF32});
        const int32_t page = 1;
        std::vector<int32_t> positions(count), slots(count);
        for (int32_t i = 0; i < count; ++i) {
          positions[i] = i;
          slots[i] = 256 + i;
        }
        const SequenceRows all{0, count, count, &page};
        const int32_t last = count - 1;
        const DraftHead::Output output =
            dense.head->forward({.next_tokens = next,
                                 .states = {inputs.data(), DType::kF32, count, kHidden, kHidden},
                                 .positions = positions,
                                 .slots = slots,
                                 .sequences = {&all, 1},
                                 .selected_rows = {&last, 1}},
                                store.layers());
        expect_close(steps[step].logits, row_of(output.logits));
        expect_close(steps[step].state, row_of(output.states));
        next.push_back(steps[step].token);
        inputs.insert(inputs.end(), steps[step].state.begin(), steps[step].state.end());
      }
    }
  }
}

}  // namespace
}  // namespace foresail
