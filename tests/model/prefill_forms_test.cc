// Both forms of prefill over a long cached prefix, and what a pass touches of the pool.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <memory>
#include <random>

#include "base/thread_pool.h"
#include "checkpoint/weight_source.h"
#include "kernels/cpu/cpu_kernels.h"
#include "model/mla_model.h"

namespace foresail {
namespace {

constexpr int kPageSize = 64;
constexpr int kVocabSize = 320;

// Caches of the small model's layers, of which only the pages that are used take memory.
class Pool {
 public:
  Pool(const ModelConfig& config, int64_t slots)
      : row_floats_(config.kv_lora_rank + config.rope_dim),
        size_bytes_(slots * row_floats_ * static_cast<int64_t>(sizeof(float))) {
    for (int64_t layer = 0; layer < config.layer_count; ++layer) {
      void* data = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      EXPECT_NE(data, MAP_FAILED);
      layers_.push_back({data, DType::kF32, kPageSize, static_cast<int>(config.kv_lora_rank),
                         static_cast<int>(config.rope_dim)});
    }
  }
  ~Pool() {
    for (const LatentCache& layer : layers_) munmap(layer.data, size_bytes_);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  std::span<const LatentCache> layers() const { return layers_; }
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const LatentCache& layer : layers_)
      for (int64_t i = 0; i < size_bytes_ / static_cast<int64_t>(sizeof(float)); ++i)
        static_cast<float*>(layer.data)[i] = static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f;
  }
  // Nothing from this slot on may be touched.
  void forbid_from(int64_t slot) {
    constexpr int64_t kGranule = 1 << 16;
    const int64_t begin =
        (slot * row_floats_ * static_cast<int64_t>(sizeof(float)) + kGranule - 1) / kGranule *
        kGranule;
    for (const LatentCache& layer : layers_)
      ASSERT_EQ(
          mprotect(static_cast<std::byte*>(layer.data) + begin, size_bytes_ - begin, PROT_NONE), 0);
  }

 private:
  int64_t row_floats_;
  int64_t size_bytes_;
  std::vector<LatentCache> layers_;
};

class PrefillForms : public testing::Test {
 protected:
  // Rows of requests with `prefix` cached positions each.
  struct Part {
    int32_t prefix;
    int32_t rows;
  };

  PrefillForms() { load(DType::kF32); }

  void load(DType dtype) {
    const std::string path = std::string(FORESAIL_SOURCE_DIR) + "/tests/goldens/g13_v3_mtp";
    config_ = read_model_config(path);
    model_.reset();
    kernels_ = create_cpu_kernels({.dtype = dtype, .isa = "auto", .pool = &threads_});
    const auto source = open_checkpoint(path, config_);
    WeightLoader loader(*source, *kernels_);
    model_ = std::make_unique<MlaModel>(config_, loader, *kernels_, 9000);
  }

  // Pages of the requests follow each other from `page` on. The state of every row.
  std::vector<float> run(const std::vector<Part>& parts, AttentionPath path, const Pool& pool,
                         int32_t page = 1) {
    std::vector<std::vector<int32_t>> tables;
    std::vector<int32_t> tokens, positions, slots;
    std::vector<SequenceRows> sequences;
    for (const Part& part : parts) {
      std::vector<int32_t>& table = tables.emplace_back();
      const int32_t length = part.prefix + part.rows;
      for (int32_t begin = 0; begin < length; begin += kPageSize) table.push_back(page++);
      sequences.push_back({static_cast<int32_t>(tokens.size()), part.rows, length, table.data()});
      for (int32_t position = part.prefix; position < length; ++position) {
        tokens.push_back((position * 31 + page) % kVocabSize);
        positions.push_back(position);
        slots.push_back(table[position / kPageSize] * kPageSize + position % kPageSize);
      }
    }
    const MlaModel::Output output = model_->forward(
        {tokens, positions, slots, sequences, {}, {}, path, prefix_parts(parts)}, pool.layers());
    const auto* state = static_cast<const float*>(output.hidden.data);
    return {state, state + output.hidden.rows * output.hidden.cols};
  }

  // As the plan of an expanded pass has them.
  static std::vector<PrefixPart> prefix_parts(const std::vector<Part>& parts) {
    constexpr int32_t kChunkKeys = 4096;
    std::vector<PrefixPart> result;
    for (size_t i = 0; i < parts.size(); ++i)
      for (int32_t begin = 0; begin < parts[i].prefix; begin += kChunkKeys)
        result.push_back(
            {static_cast<int32_t>(i), begin, std::min(kChunkKeys, parts[i].prefix - begin)});
    return result;
  }

  ThreadPool threads_{1};
  ModelConfig config_;
  std::unique_ptr<KernelSet> kernels_;
  std::unique_ptr<MlaModel> model_;
};

// K1, T8, T22: requests with and without a prefix in one pass; prefixes about the size that is
// up-projected at a time, where the parts are merged.
TEST_F(PrefillForms, ExpandedChunksEqualTheAbsorbedPass) {
  const std::vector<Part> parts = {{0, 5}, {4095, 3}, {4096, 4}, {1, 2}, {4097, 1}, {8200, 6}};
  Pool absorbed(config_, 400 * kPageSize), expanded(config_, 400 * kPageSize);
  absorbed.fill(3);
  expanded.fill(3);
  const std::vector<float> want = run(parts, AttentionPath::kAbsorbed, absorbed);
  const std::vector<float> got = run(parts, AttentionPath::kExpanded, expanded);
  ASSERT_EQ(got.size(), want.size());
  double largest = 0.0;
  for (const float x : want) largest = std::max(largest, std::abs(double{x}));
  for (size_t i = 0; i < want.size(); ++i)
    ASSERT_NEAR(got[i], want[i], 1e-4 * largest) << "row " << i / config_.hidden_dim;

  // And a request's rows do not depend on who shares the pass.
  for (const AttentionPath path : {AttentionPath::kAbsorbed, AttentionPath::kExpanded}) {
    Pool alone(config_, 400 * kPageSize);
    alone.fill(3);
    const std::vector<float> first = run({parts[0]}, path, alone);
    const std::vector<float>& shared = path == AttentionPath::kAbsorbed ? want : got;
    EXPECT_TRUE(std::equal(first.begin(), first.end(), shared.begin()));
  }
}

// Passes of a step as split_prefill() makes them: whether a request's products round follows from
// its own rows, not from those of the pass.
TEST_F(PrefillForms, RequestsThatShareAnExpandedPassKeepTheirBits) {
  load(DType::kBF16);
  for (const std::vector<Part>& parts :
       {std::vector<Part>{{0, 200}, {100, 255}, {0, 1}}, std::vector<Part>{{0, 256}, {70, 300}}}) {
    std::vector<float> apart;
    Pool pool(config_, 20 * kPageSize);
    int32_t first_page = 1;
    for (const Part& part : parts) {
      pool.fill(3);
      const std::vector<float> rows = run({part}, AttentionPath::kExpanded, pool, first_page);
      first_page += (part.prefix + part.rows + kPageSize - 1) / kPageSize;
      apart.insert(apart.end(), rows.begin(), rows.end());
    }
    pool.fill(3);
    EXPECT_EQ(run(parts, AttentionPath::kExpanded, pool), apart);
  }
}

// K3: 100 tokens cost the same whatever the pool holds: nothing beyond their pages is touched, and
// the workspace is the same.
TEST_F(PrefillForms, APassTouchesItsOwnPagesOnly) {
  for (const AttentionPath path : {AttentionPath::kAbsorbed, AttentionPath::kExpanded}) {
    std::vector<size_t> workspace;
    for (const int64_t slots : {100'000, 800'000}) {
      Pool pool(config_, slots);
      pool.forbid_from(4 * kPageSize);
      run({{0, 100}}, path, pool);
      run({{100, 1}}, AttentionPath::kAbsorbed, pool);
      workspace.push_back(model_->arena().size_bytes());
    }
    EXPECT_EQ(workspace[0], workspace[1]);
  }
}

}  // namespace
}  // namespace foresail
