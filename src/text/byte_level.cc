#include "text/byte_level.h"

#include <array>

#include "base/utf8.h"

namespace foresail {
namespace {

bool spells_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Map {
  std::array<char32_t, 256> char_of;
  std::array<int, 512> byte_of;  // by code point; -1: none
};

const Map& map() {
  static const Map built = [] {
    Map m;
    m.byte_of.fill(-1);
    char32_t next = 256;
    for (unsigned byte = 0; byte < 256; ++byte) {
      m.char_of[byte] = spells_itself(byte) ? byte : next++;
      m.byte_of[m.char_of[byte]] = static_cast<int>(byte);
    }
    return m;
  }();
  return built;
}

}  // namespace

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Char c = decode_utf8(token, i);
    if (!c.valid || c.code_point >= map().byte_of.size() || map().byte_of[c.code_point] < 0)
      return std::nullopt;
    bytes += static_cast<char>(map().byte_of[c.code_point]);
    i += c.length_bytes;
  }
  return bytes;
}

std::string byte_level_spelling(unsigned char byte) {
  std::string out;
  append_utf8(out, map().char_of[byte]);
  return out;
}

}  // namespace foresail
