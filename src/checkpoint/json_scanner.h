// A minimal forward scanner over JSON text: strings, unsigned integers and punctuation.
// For headers too large to build a tree of. Never recurses, never copies more than one string.
// Borrows the text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foresail {

class JsonScanner {
 public:
  // `where` names the file in messages.
  JsonScanner(std::string_view text, std::string_view where) : text_(text), where_(where) {}

  // Skips white space, then consumes `c` when it comes next.
  bool accept(char c);
  void expect(char c, std::string_view what);
  // A string with its escapes resolved, replacing `out`. Lone surrogates and raw control
  // characters are refused. `what` names the value in messages.
  void read_string(std::string& out, std::string_view what);
  // Digits only: no sign, fraction, exponent or leading zero, at most 2^63 - 1.
  uint64_t read_unsigned(std::string_view what);
  void expect_end();
  [[noreturn]] void fail(std::string_view what) const;

 private:
  void skip_space();
  uint32_t read_hex4(std::string_view what);
  void read_escape(std::string& out, std::string_view what);

  std::string_view text_;
  std::string_view where_;
  size_t position_ = 0;
};

}  // namespace foresail
