#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/foreign_formats.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/quantization_parser.h"

namespace foresail {
namespace {

constexpr uint64_t kMaxConfigBytes = 16u << 20;

// m(s, c) of YaRN.
double yarn_mscale(double factor, double weight) {
  return factor <= 1.0 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// The (real-valued) pair index whose wavelength fits `rotations` times into the original context.
double correction_dim(const RopeConfig& rope, double rope_dim, double rotations) {
  return rope_dim *
         std::log(static_cast<double>(rope.original_max_positions) /
                  (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(rope.theta));
}

std::vector<double> yarn_frequencies(const RopeConfig& rope, int64_t rope_dim) {
  const double dim = static_cast<double>(rope_dim);
  const double low = std::max(std::floor(correction_dim(rope, dim, rope.beta_fast)), 0.0);
  double high = std::min(std::ceil(correction_dim(rope, dim, rope.beta_slow)), dim - 1.0);
  if (low == high) high += 0.001;  // no division by zero
  std::vector<double> frequencies(rope_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double extrapolated = std::pow(rope.theta, -2.0 * static_cast<double>(i) / dim);
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = extrapolated / rope.factor * ramp + extrapolated * (1.0 - ramp);
  }
  return frequencies;
}

}  // namespace

double ModelConfig::softmax_scale() const {
  double scale = 1.0 / std::sqrt(static_cast<double>(nope_dim + rope_dim));
  if (rope.scaling == RopeScaling::kYarn && rope.mscale_all_dim.value_or(0.0) != 0.0) {
    const double correction = yarn_mscale(rope.factor, *rope.mscale_all_dim);
    scale *= correction * correction;
  }
  return scale;
}

std::vector<double> ModelConfig::inv_freq(int64_t context_len) const {
  if (rope.scaling == RopeScaling::kYarn) return yarn_frequencies(rope, rope_dim);
  std::vector<double> frequencies(rope_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] =
        std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope_dim));
  if (rope.scaling == RopeScaling::kLongRope) {
    const auto& factors =
        context_len > rope.original_max_positions ? rope.long_factors : rope.short_factors;
    for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= factors[i];
  }
  return frequencies;
}

double ModelConfig::rope_amplitude(int64_t /*context_len*/) const {
  if (rope.attention_factor) return *rope.attention_factor;
  if (rope.scaling == RopeScaling::kYarn) {
    const double numerator = rope.mscale.value_or(0.0);
    const double denominator = rope.mscale_all_dim.value_or(0.0);
    if (numerator == 0.0 || denominator == 0.0) return yarn_mscale(rope.factor, 1.0);
    return yarn_mscale(rope.factor, numerator) / yarn_mscale(rope.factor, denominator);
  }
  if (rope.scaling == RopeScaling::kLongRope) {
    const double original = static_cast<double>(rope.original_max_positions);
    return rope.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(rope.factor) / std::log(original));
  }
  return 1.0;
}

namespace {

// What may be missing is a download: nothing is fetched here.
std::string hub_advice(const std::filesystem::path& model_dir) {
  const std::string name = model_dir.string();
  const std::filesystem::path owner = model_dir.parent_path();
  const bool is_hub_name = !owner.empty() && !owner.has_parent_path() && model_dir.has_filename() &&
                           name[0] != '.' && name[0] != '~' && !is_present(owner);
  // The folder of this project, seen from another one.
  if (is_hub_name && owner == "models")
    return fmt::format("there is no folder models in {}", std::filesystem::current_path().string());
  if (!is_hub_name) return "`foresail make-model` writes one to try";
  return fmt::format(
      "if it is a model of the Hugging Face hub: `hf download {} --local-dir DIR` gets it", name);
}

}  // namespace

void require_model_folder(const std::filesystem::path& model_dir) {
  const std::string name = model_dir.string();
  if (name.empty())
    throw_model_error("options.model_path is empty: give the folder that holds config.json");
  if (!is_present(model_dir))
    throw_model_error("{}: no such folder ({})", name, hub_advice(model_dir));
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error))
    throw_model_error("{} is not a folder{}: give the folder that holds config.json", name,
                      error ? fmt::format(" ({})", error.message()) : "");
  if (is_present(model_dir / "config.json")) return;
  const std::string foreign = foreign_format(model_dir, "config.json");
  if (!foreign.empty()) throw_model_error("{}: {}", name, foreign);
  throw_model_error("{} holds no config.json: it is not a model folder", name);
}

ModelConfig read_model_config(const std::filesystem::path& model_dir) {
  require_model_folder(model_dir);
  const std::filesystem::path path = model_dir / "config.json";
  ModelConfig config = parse_model_config(read_text_file(path, kMaxConfigBytes), path.string());

  const std::filesystem::path generation_path = model_dir / "generation_config.json";
  if (is_present(generation_path))
    extend_from_generation_config(read_text_file(generation_path, kMaxConfigBytes),
                                  generation_path.string(), config);

  const std::filesystem::path quant_path = model_dir / "hf_quant_config.json";
  if (config.quantization.empty() && is_present(quant_path)) {
    const Result<Json> parsed = parse_json(read_text_file(quant_path, kMaxConfigBytes));
    if (!parsed) throw_model_error("{}: {}", quant_path.string(), parsed.error().message);
    config.quantization = parse_modelopt_quantization(ConfigFields(*parsed, quant_path.string()));
  }
  return config;
}

}  // namespace foresail
