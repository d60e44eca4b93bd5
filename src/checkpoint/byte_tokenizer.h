// The tokenizer of made models: one token per byte, DeepSeek's control tokens and pre-tokenizer.
// Small enough to write out, yet it takes the same way through the text code as a released one.
#pragma once

#include <cstdint>
#include <string>

namespace foresail {

inline constexpr int64_t kByteTokenizerBos = 0;
inline constexpr int64_t kByteTokenizerEos = 1;
// Ids 0..2 begin, end and pad; the 256 bytes; then the role and tool tokens.
int64_t byte_tokenizer_size();
std::string byte_tokenizer_json();
std::string byte_tokenizer_config_json(int64_t max_positions);

}  // namespace foresail
