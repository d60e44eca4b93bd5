#include "engine/sampling_defaults.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/config_fields.h"

namespace foresail {

SamplingParams read_sampling_defaults(const std::string& model_path, SamplingParams sampling) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  const std::filesystem::path path = std::filesystem::path(model_path) / "generation_config.json";
  if (!is_present(path)) return sampling;
  const Result<Json> json = parse_json(read_text_file(path, kMaxBytes));
  if (!json) throw_model_error("{}: {}", path.string(), json.error().message);
  const ConfigFields fields(*json, path.string());
  const auto read = [&](const char* key, double low, double high, float& out) {
    out = static_cast<float>(fields.number_or(key, low, high, out));
  };
  read("temperature", 0, 100, sampling.temperature);
  read("top_p", 1e-6, 1, sampling.top_p);
  read("min_p", 0, 1, sampling.min_p);
  read("repetition_penalty", 1e-3, 1e3, sampling.repetition_penalty);
  // Some files write 50.0, and -1 for off.
  const double top_k = fields.number_or("top_k", -1, INT32_MAX, sampling.top_k);
  if (std::trunc(top_k) != top_k) fields.fail("top_k", "it must be a whole number");
  sampling.top_k = std::max(static_cast<int>(top_k), 0);
  if (!fields.boolean_or("do_sample", true)) sampling.temperature = 0;
  return sampling;
}

}  // namespace foresail
