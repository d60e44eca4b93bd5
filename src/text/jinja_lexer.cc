#include "text/jinja_lexer.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/utf8.h"
#include "text/jinja_lexer_literals.h"
#include "text/jinja_unicode.h"

namespace foresail::jinja {
namespace {

constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                           "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                           ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) lex_text();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw JinjaError(message, line_); }
  std::string_view rest() const { return std::string_view(source_).substr(position_); }
  bool at(std::string_view text) const { return rest().substr(0, text.size()) == text; }
  void push(TokenKind kind, std::string text) {
    tokens_.push_back({kind, line_, std::move(text), {}});
  }
  void advance(size_t bytes) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + static_cast<long>(position_),
                                    source_.begin() + static_cast<long>(position_ + bytes), '\n'));
    position_ += bytes;
    line_starting_ = position_ > 0 && source_[position_ - 1] == '\n';
  }
  size_t space_at(size_t from) const {  // bytes of white space at `from`
    size_t end = from;
    while (end < source_.size()) {
      const Utf8Char c = decode_utf8(source_, end);
      if (!is_space(c.code_point)) break;
      end += c.length_bytes;
    }
    return end - from;
  }
  // Bytes of an end tag (`%}` with its sign, white space or newline) at `from`, 0 when none.
  size_t end_tag_at(size_t from, std::string_view close, bool trim_newline) const {
    const std::string_view text = std::string_view(source_).substr(from);
    if (text.size() > close.size() && text[0] == '-' && text.substr(1, close.size()) == close) {
      const size_t bytes = 1 + close.size();
      return bytes + space_at(from + bytes);
    }
    if (trim_newline && text.size() > close.size() && text[0] == '+' &&
        text.substr(1, close.size()) == close) {
      return 1 + close.size();
    }
    if (text.substr(0, close.size()) != close) return 0;
    return close.size() + (trim_newline && text.substr(close.size(), 1) == "\n" ? 1 : 0);
  }

  void emit_text(size_t begin, size_t end, char sign, bool is_print) {
    std::string_view text = std::string_view(source_).substr(begin, end - begin);
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && !is_print) {
      const size_t newline = text.rfind('\n');
      const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
      if (line_begin > 0 || line_starting_) {
        const std::string_view tail = text.substr(line_begin);
        if (!tail.empty() && strip_right(tail).empty()) text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) push(TokenKind::kText, std::string(text));
    advance(end - position_);
  }
  static std::string_view strip_right(std::string_view text) {
    while (!text.empty()) {
      size_t begin = text.size() - 1;
      while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
      if (!is_space(decode_utf8(text, begin).code_point)) break;
      text = text.substr(0, begin);
    }
    return text;
  }

  void lex_text() {
    size_t open = position_;
    for (;; ++open) {
      open = source_.find('{', open);
      if (open == std::string::npos || open + 1 >= source_.size()) {
        push(TokenKind::kText, source_.substr(position_));
        advance(source_.size() - position_);
        return;
      }
      const char next = source_[open + 1];
      if (next == '%' || next == '{' || next == '#') break;
    }
    const char type = source_[open + 1];
    const char sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
    emit_text(position_, open, sign, type == '{');
    advance(sign == '-' || sign == '+' ? 3 : 2);
    if (type == '#') return lex_comment();
    if (type == '{') return lex_expression(TokenKind::kPrintBegin, TokenKind::kPrintEnd, "}}");
    if (const size_t raw_bytes = raw_tag_at(position_, "raw", false)) return lex_raw(raw_bytes);
    lex_expression(TokenKind::kBlockBegin, TokenKind::kBlockEnd, "%}");
  }

  // Bytes of ` raw %}` or ` endraw %}` after an opening `{%`, 0 when something else stands there.
  size_t raw_tag_at(size_t from, std::string_view word, bool trim_newline) const {
    size_t end = from + space_at(from);
    if (std::string_view(source_).substr(end, word.size()) != word) return 0;
    end += word.size();
    end += space_at(end);
    if (!trim_newline && source_[end] == '+') return 0;
    const size_t tag = end_tag_at(end, "%}", trim_newline);
    return tag == 0 ? 0 : end + tag - from;
  }

  void lex_raw(size_t tag_bytes) {
    advance(tag_bytes);
    for (size_t open = position_;; ++open) {
      open = source_.find("{%", open);
      if (open == std::string::npos && position_ == source_.size()) return;  // jinja2 accepts this
      if (open == std::string::npos) fail("Missing end of raw directive");
      const char sign = open + 2 < source_.size() ? source_[open + 2] : ' ';
      const size_t inside = open + (sign == '-' || sign == '+' ? 3 : 2);
      const size_t bytes = raw_tag_at(inside, "endraw", true);
      if (bytes == 0) continue;
      emit_text(position_, open, sign, false);
      advance(inside + bytes - position_);
      return;
    }
  }

  void lex_comment() {
    const size_t close = source_.find("#}", position_);
    if (close == std::string::npos && position_ == source_.size()) return;  // jinja2 accepts this
    if (close == std::string::npos) fail("Missing end of comment tag");
    const bool has_sign =
        close > position_ && (source_[close - 1] == '-' || source_[close - 1] == '+');
    const size_t tag = has_sign ? close - 1 : close;
    advance(tag + end_tag_at(tag, "#}", true) - position_);
  }

  void lex_expression(TokenKind begin, TokenKind end, std::string_view close) {
    push(begin, "");
    std::string brackets;  // what must close next
    for (;;) {
      if (brackets.empty()) {
        if (const size_t bytes = end_tag_at(position_, close, close == "%}")) {
          push(end, "");
          return advance(bytes);
        }
      }
      if (position_ >= source_.size()) return;
      if (const size_t bytes = space_at(position_)) {
        advance(bytes);
        continue;
      }
      lex_token(brackets);
    }
  }

  void lex_token(std::string& brackets) {
    const bool after_dot = position_ > 0 && source_[position_ - 1] == '.';
    if (auto number = scan_number(rest(), !after_dot)) {
      tokens_.push_back(
          {TokenKind::kNumber, line_, std::string(rest().substr(0, number->bytes)), number->value});
      return advance(number->bytes);
    }
    if (const size_t bytes = scan_name(rest())) {
      push(TokenKind::kName, std::string(rest().substr(0, bytes)));
      return advance(bytes);
    }
    if (const size_t bytes = scan_string(rest())) {
      try {
        push(TokenKind::kString, unescape(rest().substr(1, bytes - 2)));
      } catch (const JinjaError& error) {
        fail(error.what());
      }
      return advance(bytes);
    }
    for (std::string_view op : kOperators) {
      if (!at(op)) continue;
      track_brackets(op[0], brackets);
      push(TokenKind::kOperator, std::string(op));
      return advance(op.size());
    }
    fail(fmt::format("unexpected character '{}'",
                     rest().substr(0, decode_utf8(source_, position_).length_bytes)));
  }

  void track_brackets(char op, std::string& brackets) const {
    if (op == '(') brackets.push_back(')');
    if (op == '[') brackets.push_back(']');
    if (op == '{') brackets.push_back('}');
    if (op != ')' && op != ']' && op != '}') return;
    if (brackets.empty()) fail(fmt::format("unexpected '{}'", op));
    if (brackets.back() != op)
      fail(fmt::format("unexpected '{}', expected '{}'", op, brackets.back()));
    brackets.pop_back();
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  std::string normal;
  normal.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      normal.push_back(source[i]);
    } else {
      normal.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!normal.empty() && normal.back() == '\n') normal.pop_back();
  return Lexer(std::move(normal)).run();
}

}  // namespace foresail::jinja
