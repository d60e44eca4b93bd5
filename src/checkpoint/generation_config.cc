#include "checkpoint/generation_config.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace foresail {

void read_token_ids(const ConfigFields& fields, std::string_view key, int64_t vocab_size,
                    std::vector<int64_t>& ids) {
  if (!fields.has(key)) return;
  const auto add = [&](const Json& item) {
    const bool in_range = item.is_number_integer() && item.get<double>() >= 0.0 &&
                          item.get<double>() < static_cast<double>(vocab_size);
    if (!in_range)
      fields.fail(key, fmt::format("token ids must be integers from 0 to {} (vocab_size - 1)",
                                   vocab_size - 1));
    const int64_t id = item.get<int64_t>();
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  const Json& value = fields.at(key);
  if (!value.is_array()) return add(value);
  for (const Json& item : value) add(item);
}

void extend_from_generation_config(const std::string& text, const std::string& where,
                                   ModelConfig& config) {
  const Result<Json> parsed = parse_json(text);
  if (!parsed) throw_model_error("{}: {}", where, parsed.error().message);
  const ConfigFields fields(*parsed, where);
  read_token_ids(fields, "eos_token_id", config.vocab_size, config.eos_ids);
  std::vector<int64_t> bos;
  read_token_ids(fields, "bos_token_id", config.vocab_size, bos);
  if (!config.bos_id && !bos.empty()) config.bos_id = bos.front();
}

}  // namespace foresail
