#include "checkpoint/moe_parser.h"

#include <fmt/core.h>

#include "base/json.h"

namespace foresail {
namespace {

// Over all layers; 50 times what the largest released model has. Bounds the list of tensors.
constexpr int64_t kMaxTotalExperts = int64_t{1} << 20;

// What transformers assumes for a key that is absent.
struct MoeDefaults {
  int64_t dense_layers, shared_experts, groups, top_groups, top_k;
  double routed_scale;
  bool normalize;
};

MoeDefaults defaults_of(std::string_view family) {
  if (family == "deepseek_v2") return {0, 2, 1, 1, 0, 1.0, false};
  if (family == "glm4_moe_lite") return {1, 1, 1, 1, 4, 1.8, true};
  if (family == "mistral4") return {0, 1, 1, 1, 4, 1.0, true};
  return {3, 1, 8, 4, 8, 2.5, true};
}

std::vector<bool> listed_layers(const ConfigFields& fields, int64_t layer_count) {
  const Json& types = fields.at("mlp_layer_types");
  if (!types.is_array() || types.size() != static_cast<size_t>(layer_count))
    fields.refuse("mlp_layer_types",
                  fmt::format("must list {} layers (num_hidden_layers)", layer_count));
  std::vector<bool> sparse;
  for (const Json& type : types) {
    if (type != "sparse" && type != "dense")
      fields.refuse("mlp_layer_types", "may hold only \"dense\" and \"sparse\"");
    sparse.push_back(type == "sparse");
  }
  return sparse;
}

std::vector<bool> sparse_layers(const ConfigFields& fields, std::string_view family,
                                int64_t layer_count, int64_t default_dense_layers) {
  const int64_t dense_layers =
      fields.integer_or("first_k_dense_replace", 0, 1 << 20, default_dense_layers);
  const int64_t every = fields.integer_or("moe_layer_freq", 1, 1 << 20, 1);
  std::vector<bool> sparse(layer_count);
  for (int64_t layer = 0; layer < layer_count; ++layer)
    sparse[layer] = layer >= dense_layers && layer % every == 0;
  if (!fields.has("mlp_layer_types")) return sparse;
  std::vector<bool> listed = listed_layers(fields, layer_count);
  // GLM reads the list alone; elsewhere two answers are one too many.
  if (family != "glm4_moe_lite" && listed != sparse)
    fields.refuse("mlp_layer_types",
                  "disagrees with first_k_dense_replace and moe_layer_freq: make them agree");
  return listed;
}

void read_gate(const ConfigFields& fields, std::string_view family, MoeConfig& moe) {
  const bool is_v2 = family == "deepseek_v2";
  const bool softmax = is_v2 || family == "mistral4";
  moe.scoring = softmax ? GateScoring::kSoftmax : GateScoring::kSigmoid;
  const std::string scoring = fields.text_or("scoring_func", softmax ? "softmax" : "sigmoid");
  if (scoring != (softmax ? "softmax" : "sigmoid"))
    fields.fail("scoring_func",
                fmt::format("{} gates score with {}", family, softmax ? "softmax" : "sigmoid"));

  const std::string method = fields.text_or("topk_method", softmax ? "greedy" : "noaux_tc");
  if (!softmax && method == "noaux_tc") {
    moe.method = GateMethod::kNoAuxTc;
  } else if (softmax && method == "greedy") {
    moe.method = GateMethod::kGreedy;
  } else if (is_v2 && method == "group_limited_greedy") {
    moe.method = GateMethod::kGroupLimitedGreedy;
  } else {
    fields.fail("topk_method", fmt::format("{} supports {}", family,
                                           is_v2     ? "greedy and group_limited_greedy"
                                           : softmax ? "greedy"
                                                     : "noaux_tc"));
  }
}

void check_groups(const ConfigFields& fields, const MoeConfig& moe) {
  if (moe.group_count == 1) return;
  if (moe.method == GateMethod::kGreedy && moe.scoring == GateScoring::kSoftmax)
    return;  // not used
  if (moe.expert_count % moe.group_count != 0)
    fields.fail("n_group", fmt::format("it must divide n_routed_experts {}", moe.expert_count));
  const int64_t group_size = moe.expert_count / moe.group_count;
  if (moe.method == GateMethod::kNoAuxTc && group_size < 2)
    fields.fail("n_group",
                fmt::format("each group needs at least 2 of the {} experts", moe.expert_count));
  if (moe.top_groups > moe.group_count)
    fields.fail("topk_group", fmt::format("it must not exceed n_group {}", moe.group_count));
  if (moe.top_groups * group_size < moe.top_k)
    fields.fail("topk_group",
                fmt::format("{} groups of {} experts hold fewer than num_experts_per_tok {}",
                            moe.top_groups, group_size, moe.top_k));
}

}  // namespace

void parse_moe(const ConfigFields& fields, std::string_view family, ModelConfig& config) {
  config.layer_is_moe.assign(config.layer_count, false);
  const bool dense_family = family == "youtu" || family == "minicpm3";
  if (dense_family) {
    if (fields.has("n_routed_experts"))
      fields.fail("n_routed_experts", fmt::format("{} has no experts", family));
    return;
  }
  if (!fields.has("n_routed_experts")) {
    // The remote code of DeepSeek builds dense layers then; a gate setting without experts is a
    // mistake.
    if (fields.has("num_experts_per_tok") || fields.has("moe_intermediate_size"))
      fields.refuse("n_routed_experts",
                    "is absent while other expert settings are present: add it");
    return;
  }
  const MoeDefaults defaults = defaults_of(family);
  MoeConfig& moe = config.moe;
  moe.expert_count = fields.integer("n_routed_experts", 1, 65536);
  if (moe.expert_count * config.layer_count > kMaxTotalExperts)
    fields.fail("n_routed_experts", fmt::format("times num_hidden_layers {} it must not exceed {}",
                                                config.layer_count, kMaxTotalExperts));
  moe.top_k = defaults.top_k > 0
                  ? fields.integer_or("num_experts_per_tok", 1, 65536, defaults.top_k)
                  : fields.integer("num_experts_per_tok", 1, 65536);
  if (moe.top_k > moe.expert_count)
    fields.fail("num_experts_per_tok",
                fmt::format("it must not exceed n_routed_experts {}", moe.expert_count));
  moe.inner_dim = fields.integer("moe_intermediate_size", 1, int64_t{1} << 20);
  // null means none in the remote code; absent means the class default.
  const bool null_shared =
      fields.object().contains("n_shared_experts") && !fields.has("n_shared_experts");
  moe.shared_expert_count =
      null_shared ? 0 : fields.integer_or("n_shared_experts", 0, 1024, defaults.shared_experts);
  moe.group_count = fields.integer_or("n_group", 1, 65536, defaults.groups);
  moe.top_groups = fields.integer_or("topk_group", 1, 65536, defaults.top_groups);
  moe.normalize = fields.boolean_or("norm_topk_prob", defaults.normalize);
  moe.routed_scale = fields.number_or("routed_scaling_factor", 1e-9, 1e9, defaults.routed_scale);
  read_gate(fields, family, moe);
  if (moe.scoring == GateScoring::kSoftmax && moe.method == GateMethod::kGreedy) {
    if (family == "mistral4" && moe.group_count > 1)
      fields.fail("n_group", "grouped softmax gates are not supported for mistral4");
    moe.group_count = moe.top_groups = 1;
  }
  check_groups(fields, moe);
  if (family == "deepseek_v2" && moe.normalize) {
    // DeepSeek's own V2 code either normalises the weights or scales them, never both.
    moe.normalize = moe.top_k > 1;
    if (moe.normalize) moe.routed_scale = 1.0;
  }
  config.layer_is_moe = sparse_layers(fields, family, config.layer_count, defaults.dense_layers);
}

}  // namespace foresail
