// Template source to tokens: jinja2's lexer with trim_blocks and lstrip_blocks on.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace foresail::jinja {

enum class TokenKind {
  kText,
  kPrintBegin,
  kPrintEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // literal text, name, operator, unescaped string
  Value number;      // kNumber
};

// Throws JinjaError with the line. The last token is kEnd.
std::vector<Token> tokenize(std::string_view source);

}  // namespace foresail::jinja
