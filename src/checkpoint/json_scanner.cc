#include "checkpoint/json_scanner.h"

#include "base/error.h"
#include "base/utf8.h"

namespace foresail {

void JsonScanner::fail(std::string_view what) const {
  throw_model_error("{}: header byte {}: {}", where_, position_, what);
}

void JsonScanner::skip_space() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    ++position_;
  }
}

bool JsonScanner::accept(char c) {
  skip_space();
  if (position_ >= text_.size() || text_[position_] != c) return false;
  ++position_;
  return true;
}

void JsonScanner::expect(char c, std::string_view what) {
  if (!accept(c)) fail(fmt::format("'{}' expected {}", c, what));
}

void JsonScanner::expect_end() {
  skip_space();
  if (position_ != text_.size()) fail("text after the end of the JSON object");
}

uint32_t JsonScanner::read_hex4(std::string_view what) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = position_ < text_.size() ? text_[position_] : '\0';
    uint32_t digit;
    if (c >= '0' && c <= '9') {
      digit = static_cast<uint32_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<uint32_t>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<uint32_t>(c - 'A') + 10;
    } else {
      fail(fmt::format("bad \\u escape in {}", what));
    }
    value = value * 16 + digit;
    ++position_;
  }
  return value;
}

void JsonScanner::read_escape(std::string& out, std::string_view what) {
  const char c = position_ < text_.size() ? text_[position_++] : '\0';
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  if (const size_t index = kEscapes.find(c); c != '\0' && index != std::string_view::npos) {
    out.push_back(kValues[index]);
    return;
  }
  if (c != 'u') fail(fmt::format("bad escape in {}", what));
  uint32_t code = read_hex4(what);
  const bool is_high = code >= 0xD800 && code < 0xDC00;
  if (is_high && text_.substr(position_, 2) == "\\u") {
    position_ += 2;
    const uint32_t low = read_hex4(what);
    if (low < 0xDC00 || low > 0xDFFF) fail(fmt::format("lone surrogate in {}", what));
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xD800 && code <= 0xDFFF) {
    fail(fmt::format("lone surrogate in {}", what));
  }
  append_utf8(out, code);
}

void JsonScanner::read_string(std::string& out, std::string_view what) {
  out.clear();
  if (!accept('"')) fail(fmt::format("{} must be a string", what));
  while (true) {
    if (position_ >= text_.size()) fail(fmt::format("{} is not closed", what));
    const char c = text_[position_++];
    if (c == '"') return;
    if (static_cast<unsigned char>(c) < 0x20) fail(fmt::format("control character in {}", what));
    if (c == '\\') {
      read_escape(out, what);
    } else {
      out.push_back(c);
    }
  }
}

uint64_t JsonScanner::read_unsigned(std::string_view what) {
  skip_space();
  const size_t start = position_;
  uint64_t value = 0;
  while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
    const uint64_t digit = static_cast<uint64_t>(text_[position_] - '0');
    if (value > (static_cast<uint64_t>(INT64_MAX) - digit) / 10)
      fail(fmt::format("{} exceeds 2^63 - 1", what));
    value = value * 10 + digit;
    ++position_;
  }
  const size_t digits = position_ - start;
  const char next = position_ < text_.size() ? text_[position_] : '\0';
  const bool plain = digits > 0 && (digits == 1 || text_[start] != '0') && next != '.' &&
                     next != 'e' && next != 'E';
  if (!plain)
    fail(fmt::format("{} must be a whole number of digits, without sign, point or exponent", what));
  return value;
}

}  // namespace foresail
