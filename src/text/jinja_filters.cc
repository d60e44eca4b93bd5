// Filter dispatch and the filters on text.
#include "text/jinja_filters.h"

#include <fmt/core.h>

#include <unordered_map>

#include "text/jinja_format.h"
#include "text/jinja_json.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"

namespace foresail::jinja {
namespace {

template <Casing kCasing>
Value case_filter(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound none("case filter", arguments, {});
  return in.heap().text(map_case(in.heap(), text_of(in.heap(), input), kCasing));
}

Value trim(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("trim", arguments, {"chars"});
  const Text text = text_of(in.heap(), input);
  return string_value(
      strip(in.heap(), text, args.has_value(0) ? &args.string(0) : nullptr, true, true));
}

Value string_filter(Interpreter& in, const Value& input, const Arguments&) {
  return input.is(Kind::kString) ? input : in.heap().text(text_of(in.heap(), input));
}

Value replace_filter(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("replace", arguments, {"old", "new", "count"});
  Heap& heap = in.heap();
  const Integer count = args.has_value(2) ? args.integer(2, -1) : -1;
  return heap.text(replace(heap, text_of(heap, input), text_of(heap, args.required(0)),
                           text_of(heap, args.required(1)), count));
}

Value format_filter(Interpreter& in, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    throw JinjaError("can't handle positional and keyword arguments at the same time");
  }
  Heap& heap = in.heap();
  Value values = heap.list(arguments.positional, Kind::kTuple);
  if (!arguments.named.empty()) {
    values = heap.dict();
    for (const auto& [key, value] : arguments.named)
      heap.set(values.dict(), string_value(key), value);
  }
  return heap.text(percent_format(heap, text_of(heap, input), values));
}

Value safe(Interpreter& in, const Value& input, const Arguments&) {
  Text text = text_of(in.heap(), input);
  text.markup = true;
  return in.heap().text(std::move(text));
}

Value escape(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is(Kind::kString) && input.text->markup) return input;
  Text empty;
  empty.markup = true;
  const Value text = string_value(text_of(in.heap(), input));
  Value plain = string_value(text.text->slice(0, text.text->size_bytes()));
  return binary(in.heap(), ExprKind::kAdd, string_value(std::move(empty)), plain);
}

// Lines after the first get the prefix; blank lines only when asked.
Value indent(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("indent", arguments, {"width", "first", "blank"});
  Heap& heap = in.heap();
  if (!input.is(Kind::kString)) throw JinjaError("indent: the input must be a string");
  Text prefix;
  if (args.has(0) && args[0].is(Kind::kString)) {
    prefix = *args[0].text;
  } else {
    const Integer width = args.integer(0, 4);
    if (width > 10'000) throw JinjaError("limit of indent width (10000) exceeded");
    prefix = Text(std::string(width > 0 ? static_cast<size_t>(width) : 0, ' '), false);
  }
  Text text = *input.text;
  text.append("\n", false);  // so that a trailing newline keeps its line
  const std::vector<Value> lines = split_lines(heap, text, false);
  const bool blank = args.truthy(2, false);
  Text out;
  if (args.truthy(1, false)) out.append(prefix);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", false);
      if (blank || !lines[i].text->empty()) out.append(prefix);
    }
    out.append(*lines[i].text);
    if (out.size_bytes() > heap.limits().max_string_bytes) heap.charge_string(out.size_bytes());
  }
  return heap.text(std::move(out));
}

Value tojson(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = args.truthy(0, false);
  style.sort_keys = args.truthy(3, false);
  if (args.has_value(1)) {
    style.pretty = true;
    style.item_separator = ",";
    if (args[1].is(Kind::kString)) {
      style.indent = args[1].bytes();
    } else {
      const Integer width = args.integer(1, 0);
      if (width > 1000) throw JinjaError("limit of tojson indent (1000) exceeded");
      style.indent = std::string(width > 0 ? static_cast<size_t>(width) : 0, ' ');
    }
  }
  if (args.has_value(2)) {
    const std::vector<Value>& parts = iterate(in.heap(), args[2]).items;
    if (parts.size() != 2 || !parts[0].is(Kind::kString) || !parts[1].is(Kind::kString)) {
      throw JinjaError("tojson: separators must be a pair of strings");
    }
    style.item_separator = parts[0].bytes();
    style.key_separator = parts[1].bytes();
  }
  return in.heap().text(json_of(in.heap(), input, style));
}

Value default_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Bound args("default", arguments, {"default_value", "boolean"});
  const bool use = input.is(Kind::kUndefined) || (args.truthy(1, false) && !is_truthy(input));
  if (!use) return input;
  return args.has(0) ? args[0] : string_value("");
}

Value attr(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("attr", arguments, {"name"});
  if (input.is(Kind::kUndefined)) throw_undefined(input);
  // Attributes only: unlike `.`, this does not fall back to dict keys.
  if (input.is(Kind::kDict) && !has_method(input, args.string(0).view())) {
    return undefined_value(
        fmt::format("'dict object' has no attribute '{}'", args.string(0).bytes()));
  }
  return get_attribute(in.heap(), input, args.string(0).view());
}

}  // namespace

Filter find_text_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"upper", case_filter<Casing::kUpper>},
      {"lower", case_filter<Casing::kLower>},
      {"capitalize", case_filter<Casing::kCapitalize>},
      {"title", case_filter<Casing::kTitleFilter>},
      {"trim", trim},
      {"string", string_filter},
      {"replace", replace_filter},
      {"format", format_filter},
      {"safe", safe},
      {"e", escape},
      {"escape", escape},
      {"indent", indent},
      {"tojson", tojson},
      {"default", default_filter},
      {"d", default_filter},
      {"attr", attr}};
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

namespace {

Filter find_filter(std::string_view name) {
  if (Filter found = find_text_filter(name)) return found;
  if (Filter found = find_sequence_filter(name)) return found;
  return find_number_filter(name);
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Value Interpreter::filter(std::string_view name, const Value& input, const Arguments& arguments) {
  const Depth depth(*this);
  heap_.step();
  const Filter found = find_filter(name);
  if (found == nullptr) throw JinjaError(fmt::format("No filter named '{}'.", name));
  return found(*this, input, arguments);
}

}  // namespace foresail::jinja
