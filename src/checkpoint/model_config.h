// One validated description of an MLA model, whatever family and spelling its config.json used.
// Every field is checked when the config is read; nothing downstream validates again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace foresail {

enum class GateScoring { kSoftmax, kSigmoid };
enum class GateMethod { kGreedy, kGroupLimitedGreedy, kNoAuxTc };
enum class RopeScaling { kNone, kYarn, kLongRope };

struct RopeConfig {
  double theta = 10000.0;
  bool interleaved = true;  // pairs (2i, 2i+1); false: (i, i + r/2)
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  int64_t original_max_positions = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  std::optional<double> attention_factor;
  std::vector<double> short_factors, long_factors;  // long rope, r/2 each
  // Mistral 4: q *= 1 + beta * ln(1 + floor(pos / original_max_positions)); 0: off.
  double query_scaling_beta = 0.0;
};

struct MoeConfig {
  int64_t expert_count = 0;  // 0: every layer is dense
  int64_t top_k = 0;
  int64_t inner_dim = 0;  // moe_intermediate_size
  int64_t shared_expert_count = 0;
  int64_t group_count = 1;
  int64_t top_groups = 1;
  GateScoring scoring = GateScoring::kSigmoid;
  GateMethod method = GateMethod::kNoAuxTc;
  bool normalize = false;
  double routed_scale = 1.0;
};

struct ModelConfig {
  std::string family;        // model_type after unwrapping, e.g. "deepseek_v3"
  std::string architecture;  // e.g. "DeepseekV3ForCausalLM"
  int64_t vocab_size = 0;
  int64_t hidden_dim = 0;
  int64_t layer_count = 0;
  int64_t head_count = 0;
  int64_t q_lora_rank = 0;  // 0: q comes straight from q_proj
  int64_t kv_lora_rank = 0;
  int64_t nope_dim = 0;
  int64_t rope_dim = 0;
  int64_t value_dim = 0;
  int64_t intermediate_dim = 0;
  std::vector<bool> layer_is_moe;  // [layer_count]
  MoeConfig moe;
  RopeConfig rope;
  double rms_norm_eps = 1e-6;
  double latent_norm_eps = 1e-6;  // q_a_layernorm, kv_a_layernorm: class default of transformers
  bool attention_bias = false;
  bool tied_embeddings = false;
  int64_t max_positions = 0;
  int64_t mtp_layer_count = 0;  // as the config says; the file may hold none
  std::optional<int64_t> bos_id;
  std::vector<int64_t> eos_ids;  // config.json, extended by generation_config.json
  std::string torch_dtype = "bfloat16";
  bool wrapped = false;      // a vision model's text part: its other tensors may be ignored
  std::string quantization;  // what the weights are stored as, "FP8 block"; empty: plain floats
  // MiniCPM3; 1 elsewhere.
  double embedding_scale = 1.0;
  double residual_scale = 1.0;
  double logit_scale = 1.0;  // multiplies the final hidden state before the head

  int64_t query_dim() const { return head_count * (nope_dim + rope_dim); }
  int64_t latent_row_dim() const { return kv_lora_rank + rope_dim; }
  double softmax_scale() const;                             // with the YaRN correction squared in
  std::vector<double> inv_freq(int64_t context_len) const;  // [rope_dim / 2]
  double rope_amplitude(int64_t context_len) const;         // multiplies cos and sin
};

// Throws Error{kModel} in words a first user understands when this can't be a model folder.
void require_model_folder(const std::filesystem::path& model_dir);

// Reads and validates DIR/config.json (and generation_config.json when present).
// Throws Error{kModel}: one line naming the file, the key and what is wrong or not supported.
ModelConfig read_model_config(const std::filesystem::path& model_dir);
// The same from text; `where` names the source in messages.
ModelConfig parse_model_config(const std::string& config_json, const std::string& where);

}  // namespace foresail
