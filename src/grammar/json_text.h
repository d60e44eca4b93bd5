// How JSON is spelled in an output: compact, with at most one space after a comma or colon, so that
// nothing can go on forever. Strings are written plainly where they can be. One builder's rules.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "base/json_types.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"

namespace foresail {

class JsonText {
 public:
  explicit JsonText(GrammarBuilder& builder) : builder_(builder) {}

  int32_t comma(int32_t from) { return spaced(from, ','); }
  int32_t colon(int32_t from) { return spaced(from, ':'); }
  // This very value.
  int32_t constant(int32_t from, const OrderedJson& value);
  // most < 0: of any length. Lengths are characters.
  int32_t string(int32_t from, int64_t least, int64_t most);
  int32_t matching_string(int32_t from, std::string_view pattern, const RegexOptions& options);
  // A key other than these, of plain ASCII: how else it could be spelled need not be known.
  int32_t key_other_than(int32_t from, const std::vector<std::string>& names);
  int32_t integer(int32_t from);
  int32_t number(int32_t from);
  int32_t any_value(int32_t from);
  int32_t any_object(int32_t from);
  int32_t any_array(int32_t from);

 private:
  int32_t spaced(int32_t from, char separator);
  int32_t digits(int32_t from, int64_t least, int64_t most);
  const GrammarBuilder::Rule& character();
  const GrammarBuilder::Rule& value();
  // "{" or "[", parts with commas between them, and the closing bracket.
  int32_t list(int32_t from, char open, const GrammarBuilder::Rule& part, char close);

  GrammarBuilder& builder_;
  std::optional<GrammarBuilder::Rule> character_, digit_, value_, member_;
};

// Characters as they stand in a JSON string.
void spell_in_json(GrammarBuilder& builder, int32_t from, const CharRanges& chars, int32_t to);

}  // namespace foresail
