// A position in the characters of a regular expression, shared by its parsers. A plain value.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"

namespace foresail {

// Thrown by the pattern parsers to parse_pattern, which turns it into a value.
struct PatternRefusal {
  std::string message;
};

class PatternCursor {
 public:
  static constexpr char32_t kEnd = 0x110000;
  static constexpr int kMaxDepth = 16;  // of groups and nested classes

  explicit PatternCursor(std::string_view pattern) {
    for (size_t i = 0; i < pattern.size();) {
      const Utf8Char c = decode_utf8(pattern, i);
      chars_.push_back(c.code_point);
      i += c.length_bytes;
    }
  }

  [[noreturn]] void refuse(std::string_view what) const {
    throw PatternRefusal{fmt::format("{} (at character {})", what, position_)};
  }
  char32_t peek(size_t ahead = 0) const {
    return position_ + ahead < chars_.size() ? chars_[position_ + ahead] : kEnd;
  }
  char32_t take() {
    const char32_t c = peek();
    if (c == kEnd) refuse("the pattern ends too early");
    ++position_;
    return c;
  }
  bool accept(std::u32string_view text) {
    for (size_t i = 0; i < text.size(); ++i)
      if (peek(i) != text[i]) return false;
    position_ += text.size();
    return true;
  }

 private:
  std::vector<char32_t> chars_;
  size_t position_ = 0;
};

}  // namespace foresail
