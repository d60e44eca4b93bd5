#include "base/utf8.h"

#include <algorithm>

namespace foresail {
namespace {

struct Expectation {
  uint32_t length_bytes;
  unsigned char second_low, second_high;  // allowed range of the second byte
};

// Table 3-7 of the Unicode standard: well-formed UTF-8 byte sequences.
Expectation expect(unsigned char lead) {
  if (lead < 0x80) return {1, 0, 0};
  if (lead >= 0xC2 && lead <= 0xDF) return {2, 0x80, 0xBF};
  if (lead == 0xE0) return {3, 0xA0, 0xBF};
  if (lead == 0xED) return {3, 0x80, 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {3, 0x80, 0xBF};
  if (lead == 0xF0) return {4, 0x90, 0xBF};
  if (lead >= 0xF1 && lead <= 0xF3) return {4, 0x80, 0xBF};
  if (lead == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t offset) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[offset + i]); };
  const Expectation want = expect(byte(0));
  if (want.length_bytes == 1) return {byte(0), 1, true};
  if (want.length_bytes == 0) return {kReplacement, 1, false};
  char32_t code_point = byte(0) & (0x7F >> want.length_bytes);
  for (uint32_t i = 1; i < want.length_bytes; ++i) {
    const bool present = offset + i < text.size();
    const unsigned char low = i == 1 ? want.second_low : 0x80;
    const unsigned char high = i == 1 ? want.second_high : 0xBF;
    if (!present || byte(i) < low || byte(i) > high) return {kReplacement, i, false};
    code_point = (code_point << 6) | (byte(i) & 0x3F);
  }
  return {code_point, want.length_bytes, true};
}

void append_utf8(std::string& out, char32_t c) {
  if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) c = kReplacement;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

int64_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char byte) { return (static_cast<uint8_t>(byte) & 0xC0) != 0x80; });
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (!c.valid) return false;
    i += c.length_bytes;
  }
  return true;
}

size_t incomplete_utf8_tail(std::string_view text) {
  const size_t longest = text.size() < 3 ? text.size() : 3;
  for (size_t length = longest; length > 0; --length) {
    const size_t offset = text.size() - length;
    const Expectation want = expect(static_cast<unsigned char>(text[offset]));
    if (want.length_bytes <= length) continue;
    const Utf8Char c = decode_utf8(text, offset);
    if (!c.valid && c.length_bytes == length) return length;
  }
  return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (c.valid)
      out.append(text.substr(i, c.length_bytes));
    else
      append_utf8(out, kReplacement);
    i += c.length_bytes;
  }
  return out;
}

std::string for_terminal(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    const char32_t code = c.code_point;
    const bool is_control =
        (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7F && code < 0xA0);
    append_utf8(out, c.valid && !is_control ? code : kReplacement);
    i += c.length_bytes;
  }
  return out;
}

}  // namespace foresail
