// GPT-2's byte <-> character map, in which byte-level vocabularies spell their tokens.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace foresail {

// The bytes that a byte-level token stands for; nothing if a character is outside the map.
std::optional<std::string> bytes_of_byte_level(std::string_view token);
// The spelling of one byte.
std::string byte_level_spelling(unsigned char byte);

}  // namespace foresail
