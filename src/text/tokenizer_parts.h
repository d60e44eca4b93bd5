// What a tokenizer is made of, as read from files; the two readers fill it, Tokenizer keeps it.
// A plain value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/byte_pair_encoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token_table.h"
#include "text/tokenizer_config.h"

namespace foresail {

struct TokenizerParts {
  TokenTable tokens;          // the added tokens included; indexed by what text may become
  std::vector<Merge> merges;  // none results in an added token
  bool takes_whole_pieces = false;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix_ids;  // what the post-processor puts before a text
};

// tokenizer.json: byte-level BPE. Errors are Error{kModel}; `where` is the file's name in them.
TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& where);
// tiktoken.model as Kimi has it: ranks, then 256 reserved ids that `config` names in part.
TokenizerParts parse_tiktoken_model(std::string_view text, const TokenizerConfig& config,
                                    const std::string& where);
// Error{kModel} unless every byte that UTF-8 may contain has a token of its own.
void check_byte_tokens(const TokenTable& tokens, const std::string& where);

}  // namespace foresail
