// A compiled regular expression: a complete leftmost-first automaton over classes of code points.
// Immutable after compile(); any thread may match with it at once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/pattern_parser.h"

namespace foresail {

class Pattern {
 public:
  static constexpr size_t kNoMatch = static_cast<size_t>(-1);

  static Result<Pattern> compile(const PatternNode& tree);

  // End of the match that starts at `begin`, or kNoMatch; an empty match counts as none.
  // Precondition: valid UTF-8. Adds the characters looked at to `work`.
  size_t match_end(std::string_view text, size_t begin, uint64_t& work) const;

  // Cuts text into matches and the gaps between them, in order: on_piece(piece, is_match).
  // Returns the characters looked at, so tests can hold the work linear in the text.
  // Throws Error{kUsage} when a hostile pattern would make it quadratic.
  template <typename OnPiece>
  uint64_t split(std::string_view text, OnPiece&& on_piece) const {
    uint64_t work = 0;
    size_t gap_begin = 0, position = 0;
    while (position < text.size()) {
      position = skip_impossible(text, position);
      if (position == text.size()) break;
      const size_t end = match_end(text, position, work);
      if (work > kWorkPerByte * text.size() + 1024) refuse_work();
      if (end == kNoMatch) {
        position = after_failure(text, position);
        continue;
      }
      if (gap_begin < position) on_piece(text.substr(gap_begin, position - gap_begin), false);
      on_piece(text.substr(position, end - position), true);
      gap_begin = position = end;
    }
    if (gap_begin < text.size()) on_piece(text.substr(gap_begin), false);
    return work;
  }

 private:
  friend class PatternCompiler;
  static constexpr uint64_t kWorkPerByte = 64;
  static constexpr uint16_t kMatchBefore = 0x8000;  // the match ends before this character
  static constexpr uint16_t kStateMask = 0x7FFF;    // 0 is the dead state, 1 the start

  [[noreturn]] static void refuse_work();
  struct Char {
    uint8_t char_class;
    uint32_t length_bytes;
  };
  Char char_at(std::string_view text, size_t position) const {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[position + i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {ascii_class_[lead], 1};
    if (lead < 0xE0) return {class_of((lead & 0x1Fu) << 6 | (byte(1) & 0x3Fu)), 2};
    if (lead < 0xF0)
      return {class_of((lead & 0xFu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu)), 3};
    return {class_of((lead & 7u) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 |
                     (byte(3) & 0x3Fu)),
            4};
  }
  uint8_t class_of(char32_t c) const { return class_pages_[page_of_[c >> 8] * 256u + (c & 255)]; }
  // First position at or after `position` whose character could start a match.
  size_t skip_impossible(std::string_view text, size_t position) const;
  size_t after_failure(std::string_view text, size_t position) const;

  uint32_t class_count_ = 0;             // the extra class class_count_ is the end of the text
  std::vector<uint16_t> transitions_;    // [num_states, class_count_ + 1]
  std::vector<bool> cannot_start_;       // [class_count_]
  std::vector<bool> in_leading_repeat_;  // [class_count_], see after_failure
  std::vector<uint16_t> page_of_;        // [0x1100] code point / 256 -> page
  std::vector<uint8_t> class_pages_;     // [num_pages, 256]
  uint8_t ascii_class_[128] = {};
  bool skip_ascii_[256] = {};  // the byte is an ASCII character that cannot start
};

}  // namespace foresail
