#include "checkpoint/draft_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxConfigBytes = 4u << 20;

class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  int64_t integer(const char* key, int64_t fallback) const {
    if (!json_.contains(key) || json_[key].is_null()) return fallback;
    const Json& value = json_[key];
    if (!value.is_number_integer() || value < 1 || value > (1 << 30))
      throw_model_error("{}: \"{}\" must be an integer in 1..2^30, got {}", where_, key, value.dump());
    return value.get<int64_t>();
  }
  int64_t required(const char* key) const {
    if (!json_.contains(key)) throw_model_error("{}: \"{}\" is missing", where_, key);
    return integer(key, 0);
  }
  double number(const char* key, double fallback) const {
    if (!json_.contains(key) || json_[key].is_null()) return fallback;
    if (!json_[key].is_number() || !(json_[key].get<double>() > 0))
      throw_model_error("{}: \"{}\" must be a positive number, got {}", where_, key, json_[key].dump());
    return json_[key].get<double>();
  }
  bool flag(const char* key) const {
    if (!json_.contains(key) || json_[key].is_null()) return false;
    if (!json_[key].is_boolean())
      throw_model_error("{}: \"{}\" must be true or false, got {}", where_, key, json_[key].dump());
    return json_[key].get<bool>();
  }
  std::vector<int> layers(const char* key, int shift, int64_t layer_count) const {
    if (!json_.contains(key)) return {};
    const Json& value = json_[key];
    if (!value.is_array() || value.empty() || value.size() > 16)
      throw_model_error("{}: \"{}\" must be a list of 1 to 16 layer numbers", where_, key);
    std::vector<int> result;
    for (const Json& item : value) {
      if (!item.is_number_integer() || item < 0 || item.get<int64_t>() + shift > layer_count)
        throw_model_error("{}: \"{}\" names layer {}, but the target has {} layers", where_, key,
                          item.dump(), layer_count);
      result.push_back(item.get<int>() + shift);
    }
    return result;
  }
  void refuse(const char* key, const char* feature) const {
    if (json_.contains(key) && !json_[key].is_null())
      throw_model_error("{}: \"{}\" asks for {}, which is not supported", where_, key, feature);
  }

 private:
  const Json& json_;
  std::string where_;
};

// EAGLE-3 takes three states; by default those entering layers 2, L/2 and L-3.
std::vector<int> default_target_layers(int64_t layer_count) {
  const int count = static_cast<int>(layer_count);
  return {std::min(2, count), count / 2, std::max(0, count - 3)};
}

}  // namespace

DraftConfig read_draft_config(const std::filesystem::path& draft_dir, const ModelConfig& target) {
  const std::string where = (draft_dir / "config.json").string();
  const auto parsed = parse_json(read_text_file(where, kMaxConfigBytes));
  if (!parsed) throw_model_error("{}: {}", where, parsed.error().message);
  const Json& json = *parsed;
  if (!json.is_object()) throw_model_error("{}: must be a JSON object", where);
  const Reader reader(json, where);
  reader.refuse("quantization_config", "quantised draft weights");
  reader.refuse("rope_scaling", "a scaled rotation in the draft head");

  DraftConfig config;
  ModelConfig& dims = config.mla;
  dims.family = json.value("model_type", "llama");
  dims.hidden_dim = reader.required("hidden_size");
  dims.layer_count = reader.integer("num_hidden_layers", 1);
  if (dims.layer_count != 1)
    throw_model_error("{}: draft heads of {} layers are not supported, only of 1", where, dims.layer_count);
  dims.head_count = reader.required("num_attention_heads");
  dims.intermediate_dim = reader.required("intermediate_size");
  dims.vocab_size = reader.required("vocab_size");
  dims.max_positions = reader.integer("max_position_embeddings", target.max_positions);
  dims.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
  dims.rope.theta = reader.number("rope_theta", 10000.0);
  if (dims.vocab_size != target.vocab_size)
    throw_model_error("{}: vocab_size is {} but the target has {}: the draft head belongs to another model",
                      where, dims.vocab_size, target.vocab_size);
  if (reader.integer("target_hidden_size", target.hidden_dim) != target.hidden_dim)
    throw_model_error("{}: target_hidden_size is {} but the target has {}", where,
                      reader.integer("target_hidden_size", 0), target.hidden_dim);
  config.draft_vocab_size = reader.integer("draft_vocab_size", dims.vocab_size);
  if (config.draft_vocab_size > dims.vocab_size)
    throw_model_error("{}: draft_vocab_size {} exceeds vocab_size {}", where, config.draft_vocab_size, dims.vocab_size);

  config.is_mla = json.contains("kv_lora_rank") && !json["kv_lora_rank"].is_null();
  if (config.is_mla) {
    dims.q_lora_rank = json.contains("q_lora_rank") && !json["q_lora_rank"].is_null() ? reader.required("q_lora_rank") : 0;
    dims.kv_lora_rank = reader.required("kv_lora_rank");
    dims.nope_dim = reader.required("qk_nope_head_dim");
    dims.rope_dim = reader.required("qk_rope_head_dim");
    dims.value_dim = reader.required("v_head_dim");
    dims.rope.interleaved = json.value("rope_interleave", true);
  } else {
    config.kv_head_count = reader.integer("num_key_value_heads", dims.head_count);
    config.head_dim = reader.integer("head_dim", dims.hidden_dim / dims.head_count);
    dims.rope.interleaved = false;
    dims.rope_dim = config.head_dim;
    if (dims.head_count % config.kv_head_count != 0)
      throw_model_error("{}: {} attention heads do not divide into {} key-value heads", where,
                        dims.head_count, config.kv_head_count);
  }
  if (dims.rope_dim % 2 != 0) throw_model_error("{}: the rotated dimension {} is odd", where, dims.rope_dim);

  config.norm_output = reader.flag("norm_output");
  config.norm_before_residual = reader.flag("norm_before_residual");
  config.fc_norm = reader.flag("fc_norm");
  config.norm_before_fc = reader.flag("norm_before_fc");
  // Two conventions are in use: inside eagle_config a number means that layer's output, at the top
  // level it means the state entering the layer.
  if (json.contains("eagle_config") && json["eagle_config"].is_object()) {
    const Json& eagle = json["eagle_config"];
    if (!eagle.value("use_aux_hidden_state", true))
      throw_model_error("{}: heads without auxiliary states (EAGLE-1 input) are not supported", where);
    config.target_layers = Reader(eagle, where).layers("eagle_aux_hidden_state_layer_ids", 1, target.layer_count);
  }
  if (config.target_layers.empty())
    config.target_layers = reader.layers("eagle_aux_hidden_state_layer_ids", 0, target.layer_count);
  if (config.target_layers.empty()) config.target_layers = default_target_layers(target.layer_count);
  return config;
}

}  // namespace foresail
