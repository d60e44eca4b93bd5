// UTF-8 as bytes <-> code points. Invalid input never throws; it decodes to U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace foresail {

inline constexpr char32_t kReplacement = 0xFFFD;

struct Utf8Char {
  char32_t code_point;
  uint32_t length_bytes;  // 1..4; for invalid input the maximal bad prefix (Unicode D93b)
  bool valid;
};

// Precondition: offset < text.size().
Utf8Char decode_utf8(std::string_view text, size_t offset);
void append_utf8(std::string& out, char32_t code_point);
bool is_valid_utf8(std::string_view text);
// A character counts where it begins, so pieces of a text add up.
int64_t count_characters(std::string_view text);
// Length in bytes of the trailing incomplete but so far well-formed sequence (0..3).
size_t incomplete_utf8_tail(std::string_view text);
// Replaces every maximal invalid prefix by U+FFFD, as Python's errors="replace" does.
std::string replace_invalid_utf8(std::string_view text);
// As it may be shown on a terminal: no orders to it. Control characters but line ends and tabs, and
// what is invalid, become U+FFFD.
std::string for_terminal(std::string_view text);

}  // namespace foresail
