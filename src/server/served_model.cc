#include "server/served_model.h"

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "server/api/json_object.h"

namespace foresail {

std::vector<int32_t> ServedModel::shortest_prompt() const {
  return {tokenizer == nullptr ? 0 : tokenizer->bos_id().value_or(0)};
}

bool ServedModel::has_name(std::string_view name) const {
  return (!path.empty() && name == path) ||
         std::find(names.begin(), names.end(), name) != names.end();
}

SamplingParams read_sampling_defaults(const std::string& model_path, SamplingParams sampling) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  const std::filesystem::path path = std::filesystem::path(model_path) / "generation_config.json";
  if (!is_present(path)) return sampling;
  const auto json = parse_ordered_json(read_text_file(path, kMaxBytes));
  if (!json || !json->is_object())
    throw_model_error("{}: {}", path.string(), json ? "not an object" : json.error().message);
  JsonObject fields(*json);
  fields.number("temperature", 0, 100, sampling.temperature);
  fields.integer("top_k", -1, INT32_MAX, sampling.top_k);
  fields.number("top_p", 1e-6, 1, sampling.top_p);
  fields.number("min_p", 0, 1, sampling.min_p);
  fields.number("repetition_penalty", 1e-3, 1e3, sampling.repetition_penalty);
  if (fields.fault()) throw_model_error("{}: {}", path.string(), fields.fault()->message);
  sampling.top_k = std::max(sampling.top_k, 0);
  bool samples = true;
  fields.boolean("do_sample", samples);
  if (!samples) sampling.temperature = 0;
  return sampling;
}

}  // namespace foresail
