#include "grammar/json_text.h"

#include <fmt/core.h>

#include "base/json.h"
#include "grammar/number_range.h"

namespace foresail {
namespace {

using Rule = GrammarBuilder::Rule;

const CharRanges kMustEscape = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};

std::string escaped(uint32_t c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      return fmt::format("\\u{:04x}", c);
  }
}

// [0-9a-f], and only those from `low` to `high`, in both cases.
int32_t hex_digit(GrammarBuilder& builder, int32_t from, int low = 0, int high = 15) {
  const int32_t to = builder.state();
  if (low < 10) builder.symbols(from, '0' + low, '0' + std::min(high, 9), to);
  for (const char a : {'a', 'A'})
    if (high > 9) builder.symbols(from, a + std::max(low, 10) - 10, a + high - 10, to);
  return to;
}

// \uXXXX: of a character, or both halves of a pair; never half of one.
void add_unicode_escape(GrammarBuilder& builder, int32_t from, int32_t to) {
  const int32_t u = builder.literal(from, "u");
  const auto finish = [&](int32_t at) {
    builder.skip(hex_digit(builder, hex_digit(builder, at)), to);
  };
  for (const auto& [low, high] : {std::pair(0, 12), std::pair(14, 15)})
    finish(hex_digit(builder, hex_digit(builder, u, low, high)));
  const int32_t d = hex_digit(builder, u, 13, 13);
  finish(hex_digit(builder, d, 0, 7));
  int32_t pair = hex_digit(builder, hex_digit(builder, hex_digit(builder, d, 8, 11)));
  pair = hex_digit(builder, builder.literal(pair, "\\u"), 13, 13);
  finish(hex_digit(builder, pair, 12, 15));
}

}  // namespace

void spell_in_json(GrammarBuilder& builder, int32_t from, const CharRanges& chars, int32_t to) {
  add_utf8(builder, from, intersect(chars, complement(kMustEscape)), to);
  std::vector<std::string> escapes;
  for (const auto& [low, high] : intersect(chars, kMustEscape))
    for (uint32_t c = low; c <= high; ++c) escapes.push_back(escaped(c));
  if (!escapes.empty()) builder.skip(builder.one_of(from, std::move(escapes)), to);
}

int32_t JsonText::spaced(int32_t from, char separator) {
  const int32_t to = builder_.symbol(from, separator, separator);
  const int32_t end = builder_.symbol(to, ' ', ' ');
  builder_.skip(to, end);
  return end;
}

int32_t JsonText::constant(int32_t from, const OrderedJson& value) {
  return builder_.literal(from, json_text(value));
}

const Rule& JsonText::character() {
  if (character_) return *character_;
  character_ = builder_.rule();
  const auto [start, end] = *character_;
  add_utf8(builder_, start, complement(kMustEscape), end);
  const int32_t escape = builder_.literal(start, "\\");
  for (const char c : std::string_view("\"\\/bfnrt")) builder_.symbols(escape, c, c, end);
  add_unicode_escape(builder_, escape, end);
  return *character_;
}

int32_t JsonText::string(int32_t from, int64_t least, int64_t most) {
  from = builder_.literal(from, "\"");
  return builder_.literal(builder_.repeat(from, character(), least, most), "\"");
}

int32_t JsonText::matching_string(int32_t from, std::string_view pattern,
                                  const RegexOptions& options) {
  from = builder_.literal(from, "\"");
  return builder_.literal(add_regex(builder_, from, pattern, options, spell_in_json), "\"");
}

int32_t JsonText::key_other_than(int32_t from, const std::vector<std::string>& names) {
  const auto is_plain = [](int c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; };
  const int32_t open = builder_.literal(from, "\"");
  const int32_t close = builder_.state(), elsewhere = builder_.state();
  for (int c = 0; c < 128; ++c)
    if (is_plain(c)) builder_.symbols(elsewhere, c, c, elsewhere);
  builder_.skip(elsewhere, close);
  // One state per beginning of a name; what no name goes on with leads elsewhere.
  struct Beginning {
    int32_t state = 0;
    bool is_name = false;
    std::map<int, size_t> next = {};
  };
  std::vector<Beginning> beginnings = {{open}};
  for (const std::string& name : names) {
    size_t at = 0, length = 0;
    for (; length < name.size() && is_plain(static_cast<uint8_t>(name[length])); ++length) {
      const auto [next, is_new] = beginnings[at].next.try_emplace(name[length], beginnings.size());
      at = next->second;
      if (is_new) beginnings.push_back({builder_.state()});
    }
    if (length == name.size()) beginnings[at].is_name = true;
  }
  for (const Beginning& beginning : beginnings) {
    for (int c = 0; c < 128; ++c) {
      if (!is_plain(c)) continue;
      const auto next = beginning.next.find(c);
      builder_.symbols(beginning.state, c, c,
                       next == beginning.next.end() ? elsewhere : beginnings[next->second].state);
    }
    if (!beginning.is_name) builder_.skip(beginning.state, close);
  }
  return builder_.literal(close, "\"");
}

int32_t JsonText::digits(int32_t from, int64_t least, int64_t most) {
  if (!digit_) {
    digit_ = builder_.rule();
    builder_.symbols(digit_->start, '0', '9', digit_->end);
  }
  return builder_.repeat(from, *digit_, least, most);
}

int32_t JsonText::integer(int32_t from) {
  return add_number_range(builder_, from, true, {}, {});
}

int32_t JsonText::number(int32_t from) {
  const int32_t decimal = add_number_range(builder_, from, false, {}, {});
  const int32_t exponent = builder_.state(), end = builder_.state();
  for (const char e : {'e', 'E'}) builder_.symbols(decimal, e, e, exponent);
  const int32_t sign = builder_.state();
  builder_.skip(exponent, sign);
  for (const char s : {'+', '-'}) builder_.symbols(exponent, s, s, sign);
  builder_.skip(digits(sign, 1, 2), end);
  builder_.skip(decimal, end);
  return end;
}

int32_t JsonText::list(int32_t from, char open, const Rule& part, char close) {
  const int32_t begin = builder_.symbol(from, open, open);
  const int32_t after = builder_.call(begin, part);
  builder_.skip(comma(after), begin);
  const int32_t end = builder_.symbol(after, close, close);
  // Empty, but not after a comma.
  const int32_t empty = builder_.literal(from, std::string{open, close});
  builder_.skip(empty, end);
  return end;
}

int32_t JsonText::any_array(int32_t from) {
  return list(from, '[', value(), ']');
}

int32_t JsonText::any_object(int32_t from) {
  if (!member_) {
    member_ = builder_.rule();
    const int32_t key = colon(string(member_->start, 0, -1));
    builder_.call(key, value(), member_->end);
  }
  return list(from, '{', *member_, '}');
}

const Rule& JsonText::value() {
  if (value_) return *value_;
  value_ = builder_.rule();
  const auto [start, end] = *value_;
  for (const int32_t to : {any_object(start), any_array(start), string(start, 0, -1), number(start),
                           builder_.one_of(start, {"true", "false", "null"})})
    builder_.skip(to, end);
  return *value_;
}

int32_t JsonText::any_value(int32_t from) {
  return builder_.call(from, value());
}

}  // namespace foresail
