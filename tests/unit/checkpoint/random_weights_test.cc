// Random weights and the models that make-model writes.
#include "checkpoint/random_weights.h"

#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/byte_tokenizer.h"
#include "checkpoint/config_writer.h"
#include "checkpoint/model_writer.h"
#include "checkpoint/presets.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "tensor/float_formats.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {
namespace {

using testing::HasSubstr;

std::vector<uint16_t> bf16_values(uint64_t seed, const TensorSpec& spec) {
  std::vector<uint16_t> values(spec.element_count());
  RandomTensor(seed, spec, false).fill(0, std::as_writable_bytes(std::span(values)));
  return values;
}

TEST(RandomTensor, IsAPureFunctionOfSeedNameAndPlace) {
  const TensorSpec spec{"model.layers.0.mlp.up_proj.weight", {64, 63}, DType::kBF16};
  const auto values = bf16_values(1, spec);
  EXPECT_EQ(values, bf16_values(1, spec));
  EXPECT_NE(values, bf16_values(2, spec));
  EXPECT_NE(values, bf16_values(1, {"model.layers.1.mlp.up_proj.weight", {64, 63}, DType::kBF16}));
  std::vector<uint16_t> part(101);
  RandomTensor(1, spec, false).fill(500, std::as_writable_bytes(std::span(part)));
  EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 500));
}

TEST(RandomTensor, HasTheVarianceThatKeepsActivationsSane) {
  const TensorSpec spec{"w.weight", {256, 1024}, DType::kBF16};
  double sum = 0.0, squares = 0.0;
  for (const uint16_t bits : bf16_values(3, spec)) {
    const double value = to_float(bf16{bits});
    sum += value;
    squares += value * value;
  }
  const double count = static_cast<double>(spec.element_count());
  EXPECT_NEAR(sum / count, 0.0, 1e-3);
  EXPECT_NEAR(std::sqrt(squares / count), 1.0 / 32.0, 1e-3);
  for (const uint16_t bits : bf16_values(3, {"model.norm.weight", {512}, DType::kBF16})) {
    EXPECT_GT(to_float(bf16{bits}), 0.5f);
    EXPECT_LT(to_float(bf16{bits}), 1.5f);
  }
}

TEST(DummyWeights, BuildAnyConfigWithoutFiles) {
  const ModelConfig config = make_preset("tiny-mtp").config;
  const auto source = dummy_weights(config, 7);
  EXPECT_EQ(source->total_bytes(), total_of(all_tensors(config)).size_bytes);
  for (const TensorSpec& spec : all_tensors(config)) {
    const HostTensor tensor = source->take(spec.name, spec.shape);
    EXPECT_EQ(tensor.dtype, spec.dtype);
    std::set<std::byte> distinct(tensor.data.data(), tensor.data.data() + tensor.data.size_bytes());
    EXPECT_GT(distinct.size(), 5u) << spec.name;
  }
  source->finish();
  EXPECT_TRUE(source->has("model.layers.4.eh_proj.weight"));
  const int64_t wrong[] = {1};
  EXPECT_THAT(error_of([&] { source->take("model.norm.weight", wrong); }), HasSubstr("[256]"));
  EXPECT_THAT(error_of([&] { source->take("nothing", wrong); }), HasSubstr("no tensor nothing"));
  EXPECT_THAT(error_of([&] { dummy_weights(config, 1)->finish(); }),
              HasSubstr("was loaded by nobody"));
}

TEST(Presets, AllAreListedAndValid) {
  for (const PresetInfo& info : preset_list()) {
    const Preset preset = make_preset(info.name);
    const ModelConfig parsed = parse_model_config(to_config_json(preset.config), "preset");
    EXPECT_EQ(to_config_json(parsed), to_config_json(preset.config)) << info.name;
    EXPECT_EQ(parsed.layer_is_moe, preset.config.layer_is_moe);
    EXPECT_GE(preset.config.vocab_size, byte_tokenizer_size());
    EXPECT_EQ(make_preset(info.name, 3).config.layer_count, 3);
  }
  EXPECT_NEAR(
      static_cast<double>(total_of(all_tensors(make_preset("mla-mid").config)).parameter_count),
      3.75e9, 2e7);
  EXPECT_NEAR(static_cast<double>(
                  total_of(all_tensors(make_preset("deepseek-v2-lite").config)).parameter_count),
              15.7e9, 1e8);
  EXPECT_THAT(error_of([] { make_preset("tiny"); }),
              HasSubstr("options.preset tiny is not known: choose one of tiny-mla, "));
  EXPECT_THAT(error_of([] { make_preset("tiny-mla", 0); }),
              HasSubstr("options.layers 0 is out of range"));
}

TEST(WriteModel, ReadsBackEqualToDummyWeights) {
  const TempFolder folder;
  const auto dir = folder.path() / "new" / "model";
  const Preset preset = make_preset("tiny-mtp");
  uint64_t done = 0, total = 0;
  write_preset(dir, preset, 7, [&](uint64_t done_bytes, uint64_t total_bytes) {
    EXPECT_GT(done_bytes, done);
    done = done_bytes;
    total = total_bytes;
  });
  EXPECT_EQ(done, total);
  const ModelConfig config = read_model_config(dir);
  EXPECT_EQ(config.mtp_layer_count, 1);
  const auto written = open_checkpoint(dir, config);
  const auto dummy = dummy_weights(config, 7);
  for (const TensorSpec& spec : all_tensors(config, 1)) {
    const HostTensor a = written->take(spec.name, spec.shape);
    const HostTensor b = dummy->take(spec.name, spec.shape);
    ASSERT_EQ(a.data.size_bytes(), b.data.size_bytes());
    EXPECT_EQ(0, std::memcmp(a.data.data(), b.data.data(), a.data.size_bytes())) << spec.name;
  }
  written->finish();
  EXPECT_THAT(error_of([&] { write_preset(dir, preset, 7); }),
              HasSubstr("is not empty: give a new folder"));
}

TEST(WriteModel, SplitsIntoShards) {
  const TempFolder folder;
  const auto dir = folder.path() / "model";
  const ModelConfig config = make_preset("tiny-mla").config;
  write_model(dir, config, 1, {}, 1 << 20);
  EXPECT_FALSE(std::filesystem::exists(dir / "model.safetensors"));
  size_t shards = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (file.path().extension() != ".safetensors") continue;
    ++shards;
    EXPECT_LT(file.file_size(), (1u << 20) + 65536);
  }
  EXPECT_GT(shards, 2u);
  const auto source = open_checkpoint(dir, read_model_config(dir));
  for (const TensorSpec& spec : all_tensors(config)) source->take(spec.name, spec.shape);
  source->finish();
}

TEST(WriteModel, EagleDraft) {
  const TempFolder folder;
  const auto dir = folder.path() / "model";
  const Preset preset = make_preset("tiny-eagle3");
  write_preset(dir, preset, 1);
  const SafetensorsFile file(dir / "draft" / "model.safetensors");
  const StoredTensor d2t = file.header().tensor(*file.header().find("d2t"));
  std::vector<int64_t> offsets(320);
  file.read(d2t, 0, std::as_writable_bytes(std::span(offsets)));
  std::vector<uint8_t> has_draft_id(512);
  file.read(file.header().tensor(*file.header().find("t2d")), 0,
            std::as_writable_bytes(std::span(has_draft_id)));
  for (int64_t id = 0; id < 320; ++id) EXPECT_TRUE(has_draft_id.at(id + offsets[id]));
  EXPECT_EQ(std::count(has_draft_id.begin(), has_draft_id.end(), 1), 320);
  const Json config = *parse_json(read_text_file(dir / "draft" / "config.json", 1 << 20));
  EXPECT_EQ(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"], Json({0, 1, 3}));
}

TEST(ByteTokenizer, HasEveryByteAndDenseIds) {
  const Json tokenizer = *parse_json(byte_tokenizer_json());
  const Json& vocab = tokenizer["model"]["vocab"];
  ASSERT_EQ(vocab.size(), static_cast<size_t>(byte_tokenizer_size()));
  std::set<int64_t> ids;
  for (const auto& [token, id] : vocab.items()) ids.insert(id.get<int64_t>());
  EXPECT_EQ(*ids.rbegin(), byte_tokenizer_size() - 1);
  EXPECT_EQ(ids.size(), vocab.size());
  EXPECT_EQ(vocab["Ġ"], 3 + 32);
  EXPECT_EQ(vocab["A"], 3 + 65);
  EXPECT_EQ(vocab["Ā"], 3);
  EXPECT_EQ(vocab["ÿ"], 3 + 255);
  EXPECT_EQ(vocab["<｜end▁of▁sentence｜>"], kByteTokenizerEos);
  EXPECT_TRUE(parse_json(byte_tokenizer_config_json(4096)));
}

}  // namespace
}  // namespace foresail
