// An EAGLE-3 head without lm_head.weight: the rows of the target's head that d2t names.
#include "model/eagle3_head.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "golden_files.h"
#include "kernels/cpu/cpu_kernels.h"

namespace foresail {
namespace {

constexpr int64_t kHidden = 64, kVocab = 320, kDraftVocab = 90;

// Draft ids skip every third target id and go through the rest backwards.
int64_t target_id(int64_t draft_id) {
  return 300 - draft_id * 3 / 2;
}

// A draft checkpoint: tensors made up by name, d2t, and lm_head.weight if there is one.
class DraftSource : public WeightSource {
 public:
  explicit DraftSource(HostTensor head) : head_(std::move(head)) {}
  bool has(std::string_view name) const override {
    return name == "d2t" || name == "midlayer.hidden_norm.weight" ||
           (name == "lm_head.weight" && !head_.shape.empty());
  }
  HostTensor take(std::string_view name, std::span<const int64_t> shape) override {
    if (name == "lm_head.weight") return std::move(head_);
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    if (name == "d2t") {
      HostTensor offsets{DType::kI64, {shape.begin(), shape.end()}, Buffer(count * 8)};
      for (int64_t i = 0; i < count; ++i) offsets.data.as<int64_t>()[i] = target_id(i) - i;
      return offsets;
    }
    std::mt19937_64 random(std::hash<std::string_view>()(name));
    HostTensor tensor{DType::kF32, {shape.begin(), shape.end()}, Buffer(count * sizeof(float))};
    for (int64_t i = 0; i < count; ++i)
      tensor.data.as<float>()[i] = static_cast<float>(random() >> 40) * 0x1p-24f - 0.4f;
    return tensor;
  }
  void finish() override {}
  uint64_t total_bytes() const override { return 0; }

 private:
  HostTensor head_;
};

DraftConfig draft_config() {
  DraftConfig config;
  config.mla.hidden_dim = kHidden;
  config.mla.head_count = 4;
  config.mla.intermediate_dim = 96;
  config.mla.vocab_size = kVocab;
  config.mla.rope_dim = config.head_dim = 16;
  config.kv_head_count = 2;
  config.draft_vocab_size = kDraftVocab;
  config.target_layers = {1, 2, 2};
  return config;
}

// The logits of three rows of one prompt, all drafting from the first layer's made-up states.
std::vector<float> draft_logits(Eagle3Head& head) {
  constexpr int kRows = 3, kPage = 16;
  const std::vector<int32_t> tokens{5, 17, 211}, positions{0, 1, 2}, rows{0, 1, 2},
      slots{kPage, kPage + 1, kPage + 2};
  std::vector<float> states(kRows * 3 * kHidden);
  std::mt19937_64 random(7);
  for (float& x : states) x = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
  std::vector<std::vector<float>> storage;
  std::vector<LatentCache> caches;
  for (const CacheShape& shape : head.cache_shapes()) {
    storage.emplace_back(2 * kPage * (shape.latent_dim + shape.rope_dim));
    caches.push_back({storage.back().data(), DType::kF32, kPage, shape.latent_dim, shape.rope_dim});
  }
  const int32_t page = 1;
  const SequenceRows sequence{0, kRows, kRows, &page};
  const MatrixView input{states.data(), DType::kF32, kRows, 3 * kHidden, 3 * kHidden};
  const DraftHead::Output output = head.forward({.next_tokens = tokens,
                                                 .states = input,
                                                 .positions = positions,
                                                 .slots = slots,
                                                 .sequences = {&sequence, 1},
                                                 .selected_rows = rows},
                                                caches);
  EXPECT_EQ(output.logits.cols, kDraftVocab);
  const auto* logits = static_cast<const float*>(output.logits.data);
  return {logits, logits + kRows * kDraftVocab};
}

// A target whose head is a tensor of its own, and one whose embedding is its head.
struct HeadCase {
  const char* golden;
  const char* head_tensor;
};

class SharedHead : public testing::TestWithParam<HeadCase> {};

INSTANTIATE_TEST_SUITE_P(Targets, SharedHead,
                         testing::Values(HeadCase{"g14_eagle3_llama", "lm_head.weight"},
                                         HeadCase{"g08_youtu", "model.embed_tokens.weight"}));

TEST_P(SharedHead, WithoutLmHeadEqualsItsRowsWrittenOut) {
  const auto path = golden_dir(GetParam().golden);
  const ModelConfig config = read_model_config(path);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ThreadPool threads{1};
    const auto kernels = create_cpu_kernels({.dtype = dtype, .isa = "auto", .pool = &threads});
    const auto source = open_checkpoint(path, config);
    WeightLoader target_loader(*source, *kernels);
    const MlaModel target(config, target_loader, *kernels, 256);

    const std::vector<int64_t> shape{kVocab, kHidden};
    const HostTensor whole = source->take(GetParam().head_tensor, shape);
    const size_t row_bytes = kHidden * size_bytes(whole.dtype);
    HostTensor rows{whole.dtype, {kDraftVocab, kHidden}, Buffer(kDraftVocab * row_bytes)};
    for (int64_t i = 0; i < kDraftVocab; ++i)
      std::memcpy(rows.data.data() + i * row_bytes, whole.data.data() + target_id(i) * row_bytes,
                  row_bytes);

    DraftSource without({}), with(std::move(rows));
    WeightLoader without_loader(without, *kernels), with_loader(with, *kernels);
    Eagle3Head shared(draft_config(), target, without_loader, target_loader);
    Eagle3Head written_out(draft_config(), target, with_loader, target_loader);
    const std::vector<float> logits = draft_logits(shared);
    EXPECT_EQ(logits, draft_logits(written_out));
    EXPECT_NE(logits[0], logits[1]);
    for (int64_t i = 0; i < kDraftVocab; ++i) ASSERT_EQ(shared.token_map()[i], target_id(i));
  }
}

TEST(Eagle3Head, WithoutLmHeadAnotherWidthIsRefused) {
  const auto path = golden_dir("g14_eagle3_llama");
  const ModelConfig config = read_model_config(path);
  ThreadPool threads{1};
  const auto kernels = create_cpu_kernels({.dtype = DType::kF32, .isa = "auto", .pool = &threads});
  const auto source = open_checkpoint(path, config);
  WeightLoader target_loader(*source, *kernels);
  const MlaModel target(config, target_loader, *kernels, 256);
  DraftConfig draft = draft_config();
  draft.mla.hidden_dim = 32;
  DraftSource without({});
  WeightLoader loader(without, *kernels);
  try {
    Eagle3Head(draft, target, loader, target_loader);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("no lm_head.weight"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace foresail
