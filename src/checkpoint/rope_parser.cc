#include "checkpoint/rope_parser.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace foresail {
namespace {

constexpr std::array<std::string_view, 17> kKnownKeys = {"rope_type",
                                                         "type",
                                                         "rope_theta",
                                                         "factor",
                                                         "beta_fast",
                                                         "beta_slow",
                                                         "mscale",
                                                         "mscale_all_dim",
                                                         "short_factor",
                                                         "long_factor",
                                                         "attention_factor",
                                                         "original_max_position_embeddings",
                                                         "truncate",
                                                         "short_mscale",
                                                         "llama_4_scaling_beta",
                                                         "partial_rotary_factor",
                                                         "max_position_embeddings"};

bool known(std::string_view key) {
  for (std::string_view name : kKnownKeys)
    if (key == name) return true;
  return false;
}

bool same_value(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.get<double>() == b.get<double>();
  return a == b;
}

// Both spellings merged into one object; "type" becomes "rope_type".
Json merged_block(const ConfigFields& fields) {
  Json merged = Json::object();
  const auto add = [&](const std::string& key, const Json& value, std::string_view source) {
    if (value.is_null()) return;
    const std::string name = key == "type" ? "rope_type" : key;
    const auto found = merged.find(name);
    if (found != merged.end() && !same_value(*found, value))
      throw_model_error("{}: {} gives {} {} while another rope entry gives {}: make them agree",
                        fields.where(), fields.full_key(source), name,
                        json_text(value).substr(0, 60), found->dump().substr(0, 60));
    merged[name] = value;
  };
  for (const std::string_view source : {"rope_parameters", "rope_scaling"}) {
    if (!fields.has(source)) continue;
    const ConfigFields block = fields.child(source);
    for (const auto& [key, value] : block.object().items()) {
      if (!known(key) && !value.is_null()) block.fail(key, "this rope setting is not supported");
      add(key, value, source);
    }
  }
  if (fields.has("rope_theta")) add("rope_theta", fields.at("rope_theta"), "rope_theta");
  return merged;
}

void require(const ConfigFields& block, std::initializer_list<std::string_view> keys,
             std::string_view needed_by) {
  for (const std::string_view key : keys)
    if (!block.has(key)) block.refuse(key, fmt::format("is absent: {} needs it", needed_by));
}

std::vector<double> factors(const ConfigFields& block, std::string_view key, int64_t pair_count) {
  const Json& list = block.at(key);
  if (!list.is_array() || list.size() != static_cast<size_t>(pair_count))
    block.refuse(key,
                 fmt::format("must be a list of {} numbers (qk_rope_head_dim / 2)", pair_count));
  std::vector<double> values;
  for (const Json& item : list) {
    if (!item.is_number() || !(item.get<double>() > 0.0 && item.get<double>() <= 1e9))
      block.refuse(key, "must hold numbers above 0");
    values.push_back(item.get<double>());
  }
  return values;
}

bool theta_may_be_absent(std::string_view family) {
  return family == "deepseek_v2" || family == "deepseek_v3" || family == "minicpm3";
}

void read_yarn(const ConfigFields& block, RopeConfig& rope) {
  rope.scaling = RopeScaling::kYarn;
  require(block, {"factor", "original_max_position_embeddings"}, "yarn");
  rope.factor = block.number("factor", 1.0, 1e6);
  rope.original_max_positions =
      block.integer("original_max_position_embeddings", 1, int64_t{1} << 40);
  rope.beta_fast = block.number_or("beta_fast", 1e-3, 1e6, 32.0);
  rope.beta_slow = block.number_or("beta_slow", 1e-3, 1e6, 1.0);
  rope.mscale = block.optional_number("mscale", 0.0, 100.0);
  rope.mscale_all_dim = block.optional_number("mscale_all_dim", 0.0, 100.0);
  rope.attention_factor = block.optional_number("attention_factor", 1e-6, 1e6);
  if (!block.boolean_or("truncate", true))
    block.fail("truncate", "untruncated YaRN is not supported");
  if (rope.theta <= 1.0) block.fail("rope_theta", "YaRN needs a base above 1");
}

void read_long_rope(const ConfigFields& block, const ConfigFields& fields,
                    const ModelConfig& config, RopeConfig& rope) {
  rope.scaling = RopeScaling::kLongRope;
  require(block, {"short_factor", "long_factor"}, "longrope");
  const ConfigFields& owner =
      block.has("original_max_position_embeddings") ? block : fields;  // Phi-3 puts it outside
  require(owner, {"original_max_position_embeddings"}, "longrope");
  rope.original_max_positions =
      owner.integer("original_max_position_embeddings", 2, int64_t{1} << 40);
  rope.factor = block.number_or(
      "factor", 1e-6, 1e6,
      static_cast<double>(config.max_positions) / static_cast<double>(rope.original_max_positions));
  rope.short_factors = factors(block, "short_factor", config.rope_dim / 2);
  rope.long_factors = factors(block, "long_factor", config.rope_dim / 2);
  rope.attention_factor = block.optional_number("attention_factor", 1e-6, 1e6);
}

}  // namespace

RopeConfig parse_rope(const ConfigFields& fields, std::string_view family,
                      const ModelConfig& config) {
  const Json merged = merged_block(fields);
  const std::string_view name = fields.has("rope_parameters") || !fields.has("rope_scaling")
                                    ? "rope_parameters"
                                    : "rope_scaling";
  const ConfigFields block(merged, fields.where(), fields.full_key(name));

  RopeConfig rope;
  if (!block.has("rope_theta") && !theta_may_be_absent(family))
    fields.refuse("rope_theta", "is absent: add it (or rope_parameters.rope_theta)");
  rope.theta = block.number_or("rope_theta", 1.0, 1e15, 10000.0);

  const std::string type = block.text_or("rope_type", "default");
  if (type == "yarn" || type == "deepseek_yarn") {
    read_yarn(block, rope);
  } else if (type == "longrope" || type == "su") {
    read_long_rope(block, fields, config, rope);
  } else if (type != "default" && type != "none") {
    block.fail("rope_type", "this rope scaling is not supported (default, yarn, longrope are)");
  }

  rope.interleaved = fields.boolean_or("rope_interleave", family != "minicpm3");
  if (family == "deepseek_v2" && !rope.interleaved)
    fields.fail("rope_interleave", "DeepSeek-V2 rotates adjacent pairs; remove the key");
  if (family == "minicpm3" && rope.interleaved)
    fields.fail("rope_interleave", "MiniCPM3 rotates halves; remove the key");

  // A share of the head is rotated; in MLA that share is the rope part by construction.
  const double head_dim = static_cast<double>(config.nope_dim + config.rope_dim);
  for (const ConfigFields* owner : {&block, &fields}) {
    const double share = owner->number_or("partial_rotary_factor", 0.0, 1.0, 1.0);
    if (share != 1.0 && std::abs(share * head_dim - static_cast<double>(config.rope_dim)) > 1e-6)
      owner->fail(
          "partial_rotary_factor",
          fmt::format("it disagrees with qk_rope_head_dim {} of {}", config.rope_dim, head_dim));
  }

  rope.query_scaling_beta = block.number_or("llama_4_scaling_beta", 0.0, 100.0, 0.0);
  if (fields.has("llama_4_scaling")) {
    const ConfigFields scaling = fields.child("llama_4_scaling");
    require(scaling, {"beta", "original_max_position_embeddings"}, "llama_4_scaling");
    rope.query_scaling_beta = scaling.number("beta", 0.0, 100.0);
    if (scaling.integer("original_max_position_embeddings", 1, int64_t{1} << 40) !=
        rope.original_max_positions)
      scaling.fail(
          "original_max_position_embeddings",
          fmt::format("the rope block gives {}: make them agree", rope.original_max_positions));
  }
  if (rope.query_scaling_beta > 0.0 && rope.original_max_positions <= 0) {
    require(block, {"original_max_position_embeddings"}, "llama_4_scaling_beta");
    rope.original_max_positions =
        block.integer("original_max_position_embeddings", 1, int64_t{1} << 40);
  }
  return rope;
}

}  // namespace foresail
