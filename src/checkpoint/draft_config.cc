#include "checkpoint/draft_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/draft_head_signs.h"
#include "checkpoint/rope_parser.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxConfigBytes = 4u << 20;
constexpr int64_t kMaxDim = int64_t{1} << 20;
constexpr int64_t kMaxHeadDim = 65536;

constexpr const char* kLayersKey = "eagle_aux_hidden_state_layer_ids";

// Layer numbers of the target, each plus `shift`. Empty when the key is absent.
std::vector<int> read_target_layers(const ConfigFields& fields, int shift, int64_t layer_count) {
  if (!fields.has(kLayersKey)) return {};
  const Json& list = fields.at(kLayersKey);
  if (!list.is_array() || list.empty() || list.size() > 16)
    fields.fail(kLayersKey, "it must be a list of 1 to 16 layer numbers");
  std::vector<int> layers;
  for (const Json& item : list) {
    // As a double, so that no integer of the file overflows.
    const bool in_range = item.is_number_integer() && item.get<double>() >= 0.0 &&
                          item.get<double>() <= static_cast<double>(layer_count - shift);
    if (!in_range)
      fields.fail(kLayersKey, fmt::format("the target has layers 0 to {}", layer_count - 1));
    layers.push_back(item.get<int>() + shift);
  }
  return layers;
}

// EAGLE-3 takes three states; by default those entering layers 2, L/2 and L-3.
std::vector<int> default_target_layers(int64_t layer_count) {
  const int count = static_cast<int>(layer_count);
  return {std::min(2, count), count / 2, std::max(0, count - 3)};
}

void read_dimensions(const ConfigFields& fields, const ModelConfig& target, DraftConfig& config) {
  ModelConfig& dims = config.mla;
  dims.family = fields.text_or("model_type", "llama");
  dims.hidden_dim = fields.integer("hidden_size", 1, kMaxDim);
  dims.layer_count = fields.integer_or("num_hidden_layers", 1, 4096, 1);
  if (dims.layer_count != 1)
    fields.fail("num_hidden_layers", "only draft heads of 1 layer are supported");
  dims.head_count = fields.integer("num_attention_heads", 1, 65536);
  dims.intermediate_dim = fields.integer("intermediate_size", 1, kMaxDim);
  dims.vocab_size = fields.integer("vocab_size", 1, int64_t{1} << 24);
  if (dims.vocab_size != target.vocab_size)
    fields.fail("vocab_size", fmt::format("the target has {}: the draft head belongs to another "
                                          "model",
                                          target.vocab_size));
  if (fields.integer_or("target_hidden_size", 1, kMaxDim, target.hidden_dim) != target.hidden_dim)
    fields.fail("target_hidden_size", fmt::format("the target has {}", target.hidden_dim));
  dims.max_positions =
      fields.integer_or("max_position_embeddings", 1, int64_t{1} << 40, target.max_positions);
  config.draft_vocab_size =
      fields.integer_or("draft_vocab_size", 1, dims.vocab_size, dims.vocab_size);
}

void read_attention(const ConfigFields& fields, DraftConfig& config) {
  ModelConfig& dims = config.mla;
  config.is_mla = fields.has("kv_lora_rank");
  if (config.is_mla) {
    dims.q_lora_rank = fields.integer_or("q_lora_rank", 1, kMaxDim, 0);
    dims.kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxDim);
    dims.nope_dim = fields.integer("qk_nope_head_dim", 1, kMaxHeadDim);
    dims.rope_dim = fields.integer("qk_rope_head_dim", 1, kMaxHeadDim);
    dims.value_dim = fields.integer("v_head_dim", 1, kMaxHeadDim);
  } else {
    config.kv_head_count = fields.integer_or("num_key_value_heads", 1, 65536, dims.head_count);
    config.head_dim =
        fields.integer_or("head_dim", 1, kMaxHeadDim, dims.hidden_dim / dims.head_count);
    if (config.head_dim < 1)
      fields.fail("num_attention_heads", "hidden_size / it must be at least 1");
    if (dims.head_count % config.kv_head_count != 0)
      fields.fail("num_key_value_heads",
                  fmt::format("it must divide num_attention_heads {}", dims.head_count));
    dims.rope_dim = config.head_dim;
  }
  if (dims.rope_dim % 2 != 0)
    fields.fail(config.is_mla ? "qk_rope_head_dim" : "head_dim",
                fmt::format("rotary positions need an even number, not {}", dims.rope_dim));

  dims.rope = parse_rope(fields, "deepseek_v3", dims);
  if (!config.is_mla) dims.rope.interleaved = false;
  if (dims.rope.scaling != RopeScaling::kNone || dims.rope.query_scaling_beta > 0.0)
    fields.refuse("rope_scaling", "scales the rotation: not supported in a draft head");
}

// Early heads have a model's class name and no sign of a head but their one layer.
void refuse_model(const ConfigFields& fields) {
  if (!fields.has("architectures") ||
      draft_head_signs(fields, first_architecture(fields)) != DraftHeadSigns::kNone)
    return;
  if (!fields.has("text_config") && fields.integer_or("num_hidden_layers", 1, 4096, 1) == 1) return;
  fields.fail(
      "architectures",
      "this is a model, not a draft head: give the folder of a head that was trained for "
      "options.model_path, or draft with a model by options.speculative.algorithm STANDALONE");
}

}  // namespace

DraftConfig read_draft_config(const std::filesystem::path& draft_dir, const ModelConfig& target) {
  require_model_folder(draft_dir);
  const std::string where = (draft_dir / "config.json").string();
  const auto parsed = parse_json(read_text_file(where, kMaxConfigBytes));
  if (!parsed) throw_model_error("{}: {}", where, parsed.error().message);
  const ConfigFields outer(*parsed, where);
  refuse_model(outer);
  // One engine wraps EAGLE-1/2 configs.
  const ConfigFields fields = outer.text_or("model_type", "") == "eagle" && outer.has("model")
                                  ? outer.child("model")
                                  : outer;
  if (fields.has("quantization_config"))
    fields.refuse("quantization_config", "asks for quantised draft weights: not supported");
  if (fields.text_or("hidden_act", "silu") != "silu")
    fields.fail("hidden_act", "only silu is supported");

  DraftConfig config;
  config.names_eagle3 = outer.has("architectures") &&
                        json_text(outer.at("architectures")).find("Eagle3") != std::string::npos;
  read_dimensions(fields, target, config);
  read_attention(fields, config);
  config.mla.rms_norm_eps = fields.number_or("rms_norm_eps", 1e-12, 1.0, 1e-6);
  config.norm_output = fields.boolean_or("norm_output", false);
  config.norm_before_residual = fields.boolean_or("norm_before_residual", false);
  config.fc_norm = fields.boolean_or("fc_norm", false);
  config.norm_before_fc = fields.boolean_or("norm_before_fc", false);
  // Two conventions are in use: inside eagle_config a number means that layer's output, at the top
  // level it means the state entering the layer.
  if (fields.has("eagle_config")) {
    const ConfigFields eagle = fields.child("eagle_config");
    if (!eagle.boolean_or("use_aux_hidden_state", true))
      eagle.fail("use_aux_hidden_state",
                 "heads without auxiliary states (EAGLE-1 input) are not supported");
    config.target_layers = read_target_layers(eagle, 1, target.layer_count);
  }
  if (config.target_layers.empty())
    config.target_layers = read_target_layers(fields, 0, target.layer_count);
  if (config.target_layers.empty())
    config.target_layers = default_target_layers(target.layer_count);
  return config;
}

}  // namespace foresail
