// generation_config.json: only the end-of-text and start ids are taken from it.
#pragma once

#include <string>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace foresail {

// Adds its eos ids to config.eos_ids and its bos id when config.json has none.
void extend_from_generation_config(const std::string& text, const std::string& where,
                                   ModelConfig& config);
// Appends the id or ids under `key` that are not in `ids` yet; refuses ids outside the vocabulary.
void read_token_ids(const ConfigFields& fields, std::string_view key, int64_t vocab_size,
                    std::vector<int64_t>& ids);

}  // namespace foresail
