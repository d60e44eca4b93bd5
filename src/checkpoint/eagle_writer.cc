#include "checkpoint/eagle_writer.h"

#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/random_weights.h"
#include "checkpoint/safetensors.h"

namespace foresail {
namespace {

std::vector<TensorSpec> draft_tensors(const ModelConfig& target, const EagleDraftConfig& draft) {
  const int64_t hidden = target.hidden_dim;
  const int64_t query_dim = draft.head_count * draft.head_dim;
  const int64_t kv_dim = draft.kv_head_count * draft.head_dim;
  const auto aux_count = static_cast<int64_t>(draft.aux_layers.size());
  return {
      {"d2t", {draft.draft_vocab_size}, DType::kI64},
      {"fc.weight", {hidden, aux_count * hidden}},
      {"lm_head.weight", {draft.draft_vocab_size, hidden}},
      {"midlayer.hidden_norm.weight", {hidden}},
      {"midlayer.input_layernorm.weight", {hidden}},
      {"midlayer.mlp.down_proj.weight", {hidden, draft.intermediate_dim}},
      {"midlayer.mlp.gate_proj.weight", {draft.intermediate_dim, hidden}},
      {"midlayer.mlp.up_proj.weight", {draft.intermediate_dim, hidden}},
      {"midlayer.post_attention_layernorm.weight", {hidden}},
      {"midlayer.self_attn.k_proj.weight", {kv_dim, 2 * hidden}},
      {"midlayer.self_attn.o_proj.weight", {hidden, query_dim}},
      {"midlayer.self_attn.q_proj.weight", {query_dim, 2 * hidden}},
      {"midlayer.self_attn.v_proj.weight", {kv_dim, 2 * hidden}},
      {"norm.weight", {hidden}},
      {"t2d", {target.vocab_size}, DType::kBool},
  };
}

// Every fifth target id has no draft id, so that a drafter which forgets d2t is wrong at once.
std::vector<int64_t> draft_offsets(const EagleDraftConfig& draft) {
  std::vector<int64_t> offsets(draft.draft_vocab_size);
  for (int64_t id = 0; id < draft.draft_vocab_size; ++id) offsets[id] = id / 4;
  return offsets;
}

std::string draft_config_json(const ModelConfig& target, const EagleDraftConfig& draft) {
  OrderedJson out;
  out["architectures"] = {"LlamaForCausalLMEagle3"};
  out["model_type"] = "llama";
  out["hidden_size"] = target.hidden_dim;
  out["num_attention_heads"] = draft.head_count;
  out["num_key_value_heads"] = draft.kv_head_count;
  out["head_dim"] = draft.head_dim;
  out["intermediate_size"] = draft.intermediate_dim;
  out["num_hidden_layers"] = 1;
  out["rms_norm_eps"] = target.rms_norm_eps;
  out["rope_theta"] = draft.rope_theta;
  out["vocab_size"] = target.vocab_size;
  out["draft_vocab_size"] = draft.draft_vocab_size;
  out["hidden_act"] = "silu";
  out["max_position_embeddings"] = target.max_positions;
  out["torch_dtype"] = "bfloat16";
  out["tie_word_embeddings"] = false;
  out["eagle_config"] = {{"eagle_aux_hidden_state_layer_ids", draft.aux_layers},
                         {"use_aux_hidden_state", true}};
  return json_text(out, 2) + "\n";
}

}  // namespace

void write_eagle_draft(const std::filesystem::path& dir, const ModelConfig& target,
                       const EagleDraftConfig& draft, uint64_t seed) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error)
    throw_error(ErrorCode::kUsage, "cannot create the folder {}: {}", dir.string(),
                error.message());
  const std::vector<int64_t> offsets = draft_offsets(draft);
  std::vector<uint8_t> has_draft_id(target.vocab_size, 0);
  for (size_t id = 0; id < offsets.size(); ++id)
    has_draft_id.at(id + static_cast<size_t>(offsets[id])) = 1;

  const std::vector<TensorSpec> specs = draft_tensors(target, draft);
  SafetensorsWriter writer(dir / "model.safetensors", specs);
  for (const TensorSpec& spec : specs) {
    if (spec.name == "d2t") {
      writer.append(std::as_bytes(std::span(offsets)));
    } else if (spec.name == "t2d") {
      writer.append(std::as_bytes(std::span(has_draft_id)));
    } else {
      std::vector<std::byte> values(spec.size_bytes());
      RandomTensor(seed, {"draft." + spec.name, spec.shape, spec.dtype}, false).fill(0, values);
      writer.append(values);
    }
  }
  writer.close();
  write_file(dir / "config.json", draft_config_json(target, draft));
}

}  // namespace foresail
