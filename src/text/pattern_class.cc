#include "text/pattern_class.h"

#include <optional>

namespace foresail {
namespace {

char32_t hex(PatternCursor& cursor, int digits) {
  const bool braces = cursor.accept(U"{");
  char32_t value = 0;
  for (int i = 0; braces ? !cursor.accept(U"}") : i < digits; ++i) {
    const char32_t c = cursor.take();
    const int digit = c >= '0' && c <= '9'   ? static_cast<int>(c - '0')
                      : c >= 'a' && c <= 'f' ? static_cast<int>(c - 'a' + 10)
                      : c >= 'A' && c <= 'F' ? static_cast<int>(c - 'A' + 10)
                                             : -1;
    if (digit < 0 || i >= 6) cursor.refuse("a malformed hexadecimal escape");
    value = value * 16 + static_cast<char32_t>(digit);
  }
  if (value > 0x10FFFF) cursor.refuse("a hexadecimal escape beyond Unicode");
  return value;
}

char32_t escaped_char(PatternCursor& cursor, char32_t c) {
  switch (c) {
    case 'r':
      return '\r';
    case 'n':
      return '\n';
    case 't':
      return '\t';
    case 'f':
      return '\f';
    case 'v':
      return '\v';
    case 'x':
      return hex(cursor, 2);
    case 'u':
      return hex(cursor, 4);
    default:
      break;
  }
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
    cursor.refuse(fmt::format("the escape \\{}", static_cast<char>(c)));
  return c;
}

CharSet property(PatternCursor& cursor, bool negative) {
  std::string name;
  if (cursor.accept(U"{")) {
    if (cursor.accept(U"^")) negative = !negative;
    while (cursor.peek() != '}') append_utf8(name, cursor.take());
    cursor.take();
  } else {
    append_utf8(name, cursor.take());
  }
  CharSet set;
  if (!CharSet::property(name, set))
    cursor.refuse(fmt::format("the property \\p{{{}}}", name.substr(0, 40)));
  return negative ? set.complement() : set;
}

CharSet class_item(PatternCursor& cursor, int depth) {
  const char32_t c = cursor.take();
  if (c == '[') {
    if (cursor.peek() == ':') cursor.refuse("a POSIX bracket");
    return parse_class(cursor, depth + 1);
  }
  char32_t first = c;
  if (c == '\\') {
    const char32_t kind = cursor.peek();
    const bool is_set = kind == 's' || kind == 'S' || kind == 'd' || kind == 'D' || kind == 'w' ||
                        kind == 'W' || kind == 'p' || kind == 'P';
    if (is_set) return parse_class_escape(cursor);
    first = escaped_char(cursor, cursor.take());
  }
  // A dash before the closing bracket, or as the first character, is itself.
  if (cursor.peek() != '-' || cursor.peek(1) == ']' || cursor.peek(1) == '[')
    return CharSet::range(first, first);
  cursor.take();
  char32_t last = cursor.take();
  if (last == '\\') {
    if (cursor.peek() == 's' || cursor.peek() == 'p' || cursor.peek() == 'd' ||
        cursor.peek() == 'w')
      cursor.refuse("a range that ends in a class");
    last = escaped_char(cursor, cursor.take());
  }
  if (last < first) cursor.refuse("a range out of order");
  return CharSet::range(first, last);
}

}  // namespace

CharSet parse_class_escape(PatternCursor& cursor) {
  const char32_t c = cursor.take();
  switch (c) {
    case 's':
      return CharSet::white_space();
    case 'S':
      return CharSet::white_space().complement();
    case 'd':
      return CharSet::digits();
    case 'D':
      return CharSet::digits().complement();
    case 'w':
      return CharSet::word();
    case 'W':
      return CharSet::word().complement();
    case 'p':
    case 'P':
      return property(cursor, c == 'P');
    default: {
      const char32_t literal = escaped_char(cursor, c);
      return CharSet::range(literal, literal);
    }
  }
}

// `&&` binds weaker than listing.
CharSet parse_class(PatternCursor& cursor, int depth) {
  if (depth > PatternCursor::kMaxDepth) cursor.refuse("classes nested too deep");
  const bool negative = cursor.accept(U"^");
  std::optional<CharSet> intersection;
  CharSet listed;
  for (bool first = true; first || cursor.peek() != ']'; first = false) {
    if (cursor.accept(U"&&")) {
      intersection = intersection ? intersection->intersected(listed) : listed;
      listed = {};
      continue;
    }
    listed = listed.united(class_item(cursor, depth));
  }
  cursor.take();
  const CharSet set = intersection ? intersection->intersected(listed) : listed;
  return negative ? set.complement() : set;
}

}  // namespace foresail
