// Methods of str (declared in jinja_interpreter.h) that search, split and strip.
#include <fmt/core.h>

#include "base/utf8.h"
#include "text/jinja_format.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"

namespace foresail::jinja {
namespace {

Value find_character(Heap& heap, const Text& self, const Bound& args, bool reverse,
                     bool must_exist) {
  heap.charge_scan(self.size_bytes());
  const std::vector<size_t> offsets = character_offsets(self.view());
  const auto length = static_cast<Integer>(offsets.size() - 1);
  const auto place = [&](size_t i, Integer fallback) {
    Integer at = args.has_value(i) ? args.integer(i, fallback) : fallback;
    if (at < 0) at = std::max<Integer>(at < -length ? -length : at, -length) + length;
    return at;
  };
  const Integer from = place(1, 0), to = std::min(place(2, length), length);
  if (from <= to) {
    const size_t begin = offsets[static_cast<size_t>(from)], end = offsets[static_cast<size_t>(to)];
    const std::string_view window = self.view().substr(0, end);
    const std::string& needle = args.string(0).bytes();
    size_t hit = reverse ? find_last_bytes(window, needle) : find_bytes(window, needle, begin);
    if (hit != std::string_view::npos && hit >= begin) {
      return int_value(static_cast<Integer>(count_characters(self.view().substr(0, hit))));
    }
  }
  if (must_exist) throw JinjaError("substring not found");
  return int_value(-1);
}

bool affix_matches(Heap& heap, const Text& self, const Value& affix, bool at_start,
                   const char* name, bool in_tuple = false) {
  if (affix.is(Kind::kTuple) && !in_tuple) {
    for (const Value& candidate : affix.list().items) {
      if (affix_matches(heap, self, candidate, at_start, name, true)) return true;
    }
    return false;
  }
  if (!affix.is(Kind::kString)) {
    throw JinjaError(
        fmt::format("{} first arg must be str or a tuple of str, not {}", name, type_name(affix)));
  }
  const std::string_view text = self.view(), part = affix.text->view();
  heap.step();
  heap.charge_comparisons(1, std::min(text.size(), part.size()));
  return at_start ? text.starts_with(part) : text.ends_with(part);
}

Value strip_method(Heap& heap, const Text& self, std::string_view name,
                   const Arguments& arguments) {
  const Bound args(name, arguments, {"chars"});
  const Text* characters = args.has_value(0) ? &args.string(0) : nullptr;
  return string_value(strip(heap, self, characters, name != "rstrip", name != "lstrip"));
}

Value split_method(Heap& heap, const Text& self, std::string_view name,
                   const Arguments& arguments) {
  const Bound args(name, arguments, {"sep", "maxsplit"});
  const Integer limit = args.integer(1, -1);
  const int64_t pieces = limit < 0 || limit > 1'000'000'000 ? -1 : static_cast<int64_t>(limit);
  const bool from_right = name == "rsplit";
  if (!args.has_value(0)) return heap.list(split_space(heap, self, pieces, from_right));
  if (args.string(0).empty()) throw JinjaError("empty separator");
  return heap.list(split(heap, self, args.string(0), pieces, from_right));
}

Value count_method(const Text& self, const Arguments& arguments) {
  const Bound args("count", arguments, {"sub"});
  const std::string& needle = args.string(0).bytes();
  if (needle.empty()) return int_value(static_cast<Integer>(count_characters(self.view())) + 1);
  Integer count = 0;
  for (size_t at = find_bytes(self.view(), needle, 0); at != std::string_view::npos;
       at = find_bytes(self.view(), needle, at + needle.size())) {
    ++count;
  }
  return int_value(count);
}

Value partition(Heap& heap, const Text& self, const Text& separator) {
  if (separator.empty()) throw JinjaError("empty separator");
  const size_t at = find_bytes(self.view(), separator.view(), 0);
  if (at == std::string_view::npos) {
    return heap.list({string_value(self), string_value(""), string_value("")}, Kind::kTuple);
  }
  const size_t after = at + separator.size_bytes();
  return heap.list({string_value(self.slice(0, at)), string_value(separator),
                    string_value(self.slice(after, self.size_bytes()))},
                   Kind::kTuple);
}

Value padded(Heap& heap, const Text& self, std::string_view name, const Arguments& arguments) {
  const Bound args(name, arguments, {"width", "fillchar"});
  if (!args.has(0)) args.required(0);
  const Text fill = args.has(1) ? args.string(1) : Text(name == "zfill" ? "0" : " ", false);
  if (count_characters(fill.view()) != 1)
    throw JinjaError("The fill character must be exactly one character long");
  const auto length = static_cast<Integer>(count_characters(self.view()));
  const Integer missing = std::max<Integer>(
      0, args.integer(0, 0) > (1 << 30) ? (1 << 30) : args.integer(0, 0) - length);
  heap.charge_string(self.size_bytes() + static_cast<size_t>(missing) * fill.size_bytes());
  Integer left = name == "ljust" ? 0 : missing;
  if (name == "center") left = missing / 2 + (missing & (length + missing) & 1);
  Text out;
  size_t begin = 0;
  if (name == "zfill" && missing > 0 && !self.empty() &&
      (self.bytes()[0] == '-' || self.bytes()[0] == '+')) {
    out.append(self, 0, begin = 1);
  }
  for (Integer i = 0; i < left; ++i) out.append(fill);
  out.append(self, begin, self.size_bytes());
  for (Integer i = left; i < missing; ++i) out.append(fill);
  return string_value(std::move(out));
}

bool all_characters(Heap& heap, const Text& self, bool (*predicate)(char32_t)) {
  heap.charge_scan(self.size_bytes());
  for (size_t i = 0; i < self.size_bytes();) {
    const Utf8Char c = decode_utf8(self.view(), i);
    if (!predicate(c.code_point)) return false;
    i += c.length_bytes;
  }
  return !self.empty();
}
bool is_ascii_digit(char32_t c) {
  return c >= '0' && c <= '9';
}
bool is_alphanumeric(char32_t c) {
  return is_ascii_digit(c) || is_alphabetic(c);
}

}  // namespace

Value call_string_method(Heap& heap, const Text& self, std::string_view name,
                         const Arguments& arguments) {
  heap.charge_string(self.size_bytes());
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return strip_method(heap, self, name, arguments);
  if (name == "split" || name == "rsplit") return split_method(heap, self, name, arguments);
  if (name == "startswith" || name == "endswith") {
    const Bound args(name, arguments, {"prefix"});
    return bool_value(affix_matches(heap, self, args.required(0), name == "startswith",
                                    std::string(name).c_str()));
  }
  if (name == "replace") {
    const Bound args(name, arguments, {"old", "new", "count"});
    return heap.text(replace(heap, self, args.string(0), args.string(1), args.integer(2, -1)));
  }
  if (name == "format") return heap.text(brace_format(heap, self, arguments));
  if (name == "join") {
    const Bound args(name, arguments, {"iterable"});
    Text out;
    bool first = true;
    for (const Value& part : iterate(heap, args.required(0)).items) {
      if (!part.is(Kind::kString)) {
        throw JinjaError(
            fmt::format("sequence item: expected str instance, {} found", type_name(part)));
      }
      if (!first) out.append(self);
      first = false;
      append_text(heap, out, part);
    }
    return heap.text(std::move(out));
  }
  if (name == "count") return count_method(self, arguments);
  if (name == "find" || name == "rfind" || name == "index") {
    const Bound args(name, arguments, {"sub", "start", "end"});
    return find_character(heap, self, args, name == "rfind", name == "index");
  }
  if (name == "partition") {
    const Bound args(name, arguments, {"sep"});
    return partition(heap, self, args.string(0));
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const Bound args(name, arguments, {"prefix"});
    const std::string& part = args.string(0).bytes();
    const bool prefix = name == "removeprefix";
    const bool hit = prefix ? self.view().starts_with(part) : self.view().ends_with(part);
    if (!hit) return string_value(self);
    return string_value(prefix ? self.slice(part.size(), self.size_bytes())
                               : self.slice(0, self.size_bytes() - part.size()));
  }
  if (name == "ljust" || name == "rjust" || name == "center" || name == "zfill") {
    return padded(heap, self, name, arguments);
  }
  const Bound none(name, arguments,
                   name == "splitlines" ? std::initializer_list<const char*>{"keepends"}
                                        : std::initializer_list<const char*>{});
  if (name == "splitlines") return heap.list(split_lines(heap, self, none.truthy(0, false)));
  if (name == "upper") return heap.text(map_case(heap, self, Casing::kUpper));
  if (name == "lower") return heap.text(map_case(heap, self, Casing::kLower));
  if (name == "title") return heap.text(map_case(heap, self, Casing::kTitleMethod));
  if (name == "capitalize") return heap.text(map_case(heap, self, Casing::kCapitalize));
  if (name == "isspace") return bool_value(all_characters(heap, self, is_space));
  if (name == "isalpha") return bool_value(all_characters(heap, self, is_alphabetic));
  if (name == "isdigit" || name == "isnumeric")
    return bool_value(all_characters(heap, self, is_ascii_digit));
  if (name == "isalnum") return bool_value(all_characters(heap, self, is_alphanumeric));
  // isupper and islower: some cased character, and none of the other case.
  const bool unchanged =
      map_case(heap, self, name == "isupper" ? Casing::kUpper : Casing::kLower).bytes() ==
      self.bytes();
  const bool cased =
      map_case(heap, self, name == "isupper" ? Casing::kLower : Casing::kUpper).bytes() !=
      self.bytes();
  return bool_value(unchanged && cased);
}

}  // namespace foresail::jinja
