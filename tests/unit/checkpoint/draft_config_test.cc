// config.json of a draft head: wrong values are one line with file, key, value and advice.
#include <gmock/gmock-matchers.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/draft_config.h"
#include "unit/checkpoint/temp_folder.h"

namespace foresail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Reads the golden head's config after a JSON merge patch; null removes a key.
DraftConfig read_patched(const std::string& patch, const std::string& golden = "g14_eagle3_llama") {
  const auto dir = std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/goldens" / golden;
  Json config = *parse_json(read_text_file(dir / "draft/config.json", 1 << 20));
  config.merge_patch(Json::parse(patch));
  const TempFolder folder;
  folder.write("config.json", json_text(config));
  return read_draft_config(folder.path(), read_model_config(dir));
}

std::string error_for(const std::string& patch) {
  return error_of([&] { read_patched(patch); });
}

TEST(DraftConfig, WrongValuesNameKeyAndAdvice) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model_type":5})", "config.json: model_type is 5: it must be a string"},
      {R"({"num_attention_heads":null})", "num_attention_heads is absent"},
      {R"({"num_attention_heads":0})", "num_attention_heads is 0: it must be an integer from 1"},
      {R"({"num_attention_heads":65536,"head_dim":null})", "hidden_size / it must be at least 1"},
      {R"({"hidden_size":-1})", "hidden_size is -1: it must be an integer from 1"},
      {R"({"head_dim":1000000000})", "head_dim is 1000000000: it must be an integer from 1 to"},
      {R"({"head_dim":15})", "head_dim is 15: rotary positions need an even number"},
      {R"({"num_key_value_heads":3})", "num_key_value_heads is 3: it must divide"},
      {R"({"num_hidden_layers":2})", "num_hidden_layers is 2: only draft heads of 1 layer"},
      {R"({"vocab_size":7})", "the draft head belongs to another model"},
      {R"({"draft_vocab_size":1000000})", "draft_vocab_size is 1000000: it must be an integer"},
      {R"({"hidden_act":"gelu"})", "hidden_act is \"gelu\": only silu is supported"},
      {R"({"rms_norm_eps":1e300})", "rms_norm_eps is 1e+300: it must be a number from"},
      {R"({"rope_theta":-1})", "rope_theta is -1: it must be a number from"},
      {R"({"rope_parameters":{"rope_type":"yarn","factor":4.0,
           "original_max_position_embeddings":64}})",
       "scales the rotation: not supported in a draft head"},
      {R"({"norm_output":"yes"})", "norm_output is \"yes\": it must be true or false"},
      {R"({"eagle_config":7})", "eagle_config is 7: it must be a JSON object"},
      {R"({"eagle_config":{"use_aux_hidden_state":0}})",
       "eagle_config.use_aux_hidden_state is 0: it must be true or false"},
      {R"({"eagle_config":{"eagle_aux_hidden_state_layer_ids":[]}})", "must be a list of 1 to 16"},
      {R"({"eagle_config":{"eagle_aux_hidden_state_layer_ids":[-1]}})", "the target has layers 0"},
      {R"({"eagle_config":{"eagle_aux_hidden_state_layer_ids":[1.5]}})", "the target has layers 0"},
      // One more than it wraps round to a small number.
      {R"({"eagle_config":{"eagle_aux_hidden_state_layer_ids":[9223372036854775807]}})",
       "the target has layers 0"},
      {R"({"eagle_config":{"eagle_aux_hidden_state_layer_ids":[18446744073709551615]}})",
       "the target has layers 0"},
  };
  for (const auto& [patch, message] : cases) EXPECT_THAT(error_for(patch), HasSubstr(message));
}

TEST(DraftConfig, AModelIsNoDraftHead) {
  const auto model = std::filesystem::path(FORESAIL_SOURCE_DIR) / "tests/goldens/g14_eagle3_llama";
  const std::string error = error_of([&] { read_draft_config(model, read_model_config(model)); });
  EXPECT_THAT(error, HasSubstr("architectures is [\"DeepseekV3ForCausalLM\"]: this is a model, not "
                               "a draft head: give the folder of a head"));
  EXPECT_THAT(error, HasSubstr("options.speculative.algorithm STANDALONE"));
  // Early heads name the class of a model, of which they have one layer.
  const std::string early =
      R"({"architectures":["LlamaForCausalLM"],"draft_vocab_size":null,"eagle_config":null})";
  EXPECT_FALSE(read_patched(early).names_eagle3);
}

TEST(DraftConfig, ReadsTheRotationInBothSpellings) {
  EXPECT_EQ(read_patched(R"({"rope_theta":5000.0})").mla.rope.theta, 5000.0);
  EXPECT_EQ(
      read_patched(R"({"rope_theta":null,"rope_parameters":{"rope_theta":7000.0}})").mla.rope.theta,
      7000.0);
  EXPECT_FALSE(read_patched("{}").mla.rope.interleaved);
  EXPECT_TRUE(read_patched("{}", "g15_eagle3_mla").mla.rope.interleaved);
}

TEST(DraftConfig, ALayersOutputIsTheNextLayersInput) {
  EXPECT_THAT(
      read_patched(R"({"eagle_config":{"eagle_aux_hidden_state_layer_ids":[0,1]}})").target_layers,
      ElementsAre(1, 2));
  EXPECT_THAT(read_patched(R"({"eagle_config":null,"eagle_aux_hidden_state_layer_ids":[0,1]})")
                  .target_layers,
              ElementsAre(0, 1));
}

}  // namespace
}  // namespace foresail
