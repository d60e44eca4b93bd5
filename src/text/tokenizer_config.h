// What tokenizer_config.json says about ids: bos, eos, whether bos is added, and named tokens.
// A plain value.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_types.h"
#include "text/added_tokens.h"

namespace foresail {

struct TokenizerConfig {
  std::optional<std::string> bos_token, eos_token;
  std::optional<bool> add_bos_token;
  std::vector<AddedToken> added_tokens;  // `added_tokens_decoder`

  // An empty text means there is no such file. Errors are Error{kModel}.
  static TokenizerConfig parse(std::string_view text, const std::string& where);
};

// One entry of `added_tokens` or `added_tokens_decoder`, without its id.
AddedToken parse_added_token(const Json& json, const std::string& where);
// Error{kModel} unless 0 <= id <= TokenTable::kMaxId.
int32_t checked_token_id(int64_t id, const std::string& where);

}  // namespace foresail
