#include "text/jinja_lexer_literals.h"

#include <charconv>

#include "base/utf8.h"
#include "text/jinja_unicode.h"

namespace foresail::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// (digits _?)* digits; returns the end, `from` when there is none.
size_t digits_end(std::string_view text, size_t from) {
  size_t end = from;
  while (end < text.size() &&
         (is_digit(text[end]) || (text[end] == '_' && end > from && text[end - 1] != '_' &&
                                  end + 1 < text.size() && is_digit(text[end + 1])))) {
    ++end;
  }
  return end;
}

std::string without_underscores(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c != '_') out.push_back(c);
  }
  return out;
}

int digit_of(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

std::optional<ScannedNumber> scan_float(std::string_view text) {
  size_t end = digits_end(text, 0);
  if (end == 0) return std::nullopt;
  bool is_float = false;
  if (end < text.size() && text[end] == '.' && digits_end(text, end + 1) > end + 1) {
    end = digits_end(text, end + 1);
    is_float = true;
  }
  if (end < text.size() && (text[end] == 'e' || text[end] == 'E')) {
    size_t digits = end + 1;
    if (digits < text.size() && (text[digits] == '+' || text[digits] == '-')) ++digits;
    if (digits_end(text, digits) > digits) {
      end = digits_end(text, digits);
      is_float = true;
    }
  }
  if (!is_float) return std::nullopt;
  const std::string clean = without_underscores(text.substr(0, end));
  double value = 0;
  if (std::from_chars(clean.data(), clean.data() + clean.size(), value).ec ==
      std::errc::result_out_of_range) {
    value = std::stod("inf");
  }
  return ScannedNumber{end, float_value(value)};
}

}  // namespace

std::optional<ScannedNumber> scan_number(std::string_view text, bool allow_float) {
  if (text.empty() || !is_digit(text[0])) return std::nullopt;
  if (allow_float) {
    if (auto number = scan_float(text)) return number;
  }
  int base = 10;
  if (text.size() > 2 && text[0] == '0') {
    const char letter = static_cast<char>(text[1] | 32);
    const int wanted = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    const size_t first = text[2] == '_' ? 3 : 2;
    if (wanted != 10 && first < text.size() && digit_of(text[first]) < wanted) base = wanted;
  }
  size_t i = base == 10 ? 0 : 2;
  Integer value = 0;
  const bool zeros_only = base == 10 && text[0] == '0';
  for (; i < text.size(); ++i) {
    if (text[i] == '_') {
      if (i + 1 >= text.size() || digit_of(text[i + 1]) >= base) break;
      continue;
    }
    const int digit = digit_of(text[i]);
    if (digit >= base || (zeros_only && digit != 0)) break;
    if (__builtin_mul_overflow(value, static_cast<Integer>(base), &value) ||
        __builtin_add_overflow(value, static_cast<Integer>(digit), &value)) {
      throw JinjaError("integer literal too large");
    }
  }
  return ScannedNumber{i, int_value(value)};
}

size_t scan_name(std::string_view text) {
  size_t end = 0;
  while (end < text.size()) {
    const auto byte = static_cast<unsigned char>(text[end]);
    if (byte < 0x80) {
      const bool word = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
                        byte == '_' || is_digit(text[end]);
      if (!word) break;
      ++end;
      continue;
    }
    const Utf8Char c = decode_utf8(text, end);
    if (!is_alphabetic(c.code_point)) break;
    end += c.length_bytes;
  }
  return end;
}

size_t scan_string(std::string_view text) {
  if (text.empty() || (text[0] != '\'' && text[0] != '"')) return 0;
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[0]) {
      return i + 1;
    }
  }
  return 0;
}

std::string unescape(std::string_view body) {
  std::string out;
  out.reserve(body.size());
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] != '\\' || i + 1 >= body.size()) {
      out.push_back(body[i]);
      continue;
    }
    const char c = body[++i];
    constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t simple = kFrom.find(c); simple != std::string_view::npos) {
      out.push_back(kTo[simple]);
    } else if (c == '\n') {
      continue;
    } else if (c >= '0' && c <= '7') {
      char32_t code = 0;
      size_t end = i;
      while (end < i + 3 && end < body.size() && body[end] >= '0' && body[end] <= '7') {
        code = code * 8 + static_cast<char32_t>(body[end++] - '0');
      }
      append_utf8(out, code);
      i = end - 1;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      char32_t code = 0;
      for (size_t k = 1; k <= count; ++k) {
        if (i + k >= body.size() || digit_of(body[i + k]) > 15) {
          throw JinjaError("truncated escape in a string literal");
        }
        code = code * 16 + static_cast<char32_t>(digit_of(body[i + k]));
      }
      if (code > 0x10ffff) throw JinjaError("illegal Unicode character in a string literal");
      append_utf8(out, code >= 0xd800 && code <= 0xdfff ? kReplacement : code);
      i += count;
    } else if (c == 'N') {
      throw JinjaError("\\N{...} in a string literal is not supported");
    } else {
      out.push_back('\\');
      out.push_back(c);
    }
  }
  return out;
}

}  // namespace foresail::jinja
