// The golden checkpoints open, every tensor reads, and scale and frequencies match their oracle.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/model_config.h"
#include "checkpoint/tensor_list.h"
#include "checkpoint/weight_source.h"

namespace foresail {
namespace {

const std::filesystem::path kGoldens =
    std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests" / "goldens";

class GoldenCheckpoint : public testing::TestWithParam<const char*> {};
class GoldenRope : public testing::TestWithParam<const char*> {};

TEST_P(GoldenCheckpoint, OpensAndReadsEveryTensor) {
  const std::filesystem::path dir = kGoldens / GetParam();
  const ModelConfig config = read_model_config(dir);
  const auto source = open_checkpoint(dir, config);
  EXPECT_EQ(config.eos_ids, std::vector<int64_t>{1});
  uint64_t bytes = 0;
  const uint64_t total_bytes = source->total_bytes();
  for (const TensorSpec& spec : all_tensors(config)) {
    ASSERT_TRUE(source->has(spec.name)) << spec.name;
    const HostTensor tensor = source->take(spec.name, spec.shape);
    EXPECT_EQ(tensor.dtype, spec.dtype) << spec.name;
    EXPECT_EQ(tensor.shape, spec.shape);
    bytes += tensor.data.size_bytes();
  }
  EXPECT_EQ(bytes, total_bytes);
  EXPECT_EQ(source->total_bytes(), 0u);
  source->finish();
}

TEST_P(GoldenRope, ScaleAndFrequenciesMatchTheOracle) {
  const std::filesystem::path dir = kGoldens / GetParam();
  const ModelConfig config = read_model_config(dir);
  const Result<Json> golden = parse_json(read_text_file(dir / "golden.json", 1 << 20));
  ASSERT_TRUE(golden);
  const double scale = golden->at("softmax_scale");
  EXPECT_NEAR(config.softmax_scale() / scale, 1.0, 1e-6);
  const auto frequencies = config.inv_freq(config.max_positions);
  const auto& expected = golden->at("inv_freq");
  ASSERT_EQ(frequencies.size(), expected.size());
  for (size_t i = 0; i < frequencies.size(); ++i)
    EXPECT_NEAR(frequencies[i] / expected[i].get<double>(), 1.0, 1e-6) << i;
}

std::string name_of(const testing::TestParamInfo<const char*>& test) {
  return test.param;
}

constexpr const char* kPlain[] = {
    "g01_v3_yarn",     "g02_moonlight",      "g03_kimi_k2", "g04_v2_lite",  "g05_v2_groups",
    "g06_glm47_flash", "g07_full_head_dims", "g08_youtu",   "g09_mistral4", "g10_minicpm3"};
constexpr const char* kWithDrafter[] = {"g13_v3_mtp", "g14_eagle3_llama", "g15_eagle3_mla"};

INSTANTIATE_TEST_SUITE_P(Plain, GoldenCheckpoint, testing::ValuesIn(kPlain), name_of);
INSTANTIATE_TEST_SUITE_P(WithDrafter, GoldenCheckpoint, testing::ValuesIn(kWithDrafter), name_of);
INSTANTIATE_TEST_SUITE_P(Plain, GoldenRope, testing::ValuesIn(kPlain), name_of);

TEST(GoldenCheckpoint, FusedExpertsAreSplitGateFirst) {
  const std::filesystem::path dir = kGoldens / "g09_mistral4";
  const ModelConfig config = read_model_config(dir);
  const auto source = open_checkpoint(dir, config);
  const int64_t shape[] = {32, 64};
  const HostTensor gate = source->take("model.layers.0.mlp.experts.0.gate_proj.weight", shape);
  const HostTensor up = source->take("model.layers.0.mlp.experts.0.up_proj.weight", shape);
  EXPECT_NE(0, std::memcmp(gate.data.data(), up.data.data(), gate.data.size_bytes()));
}

}  // namespace
}  // namespace foresail
