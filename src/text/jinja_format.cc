#include "text/jinja_format.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace foresail::jinja {
namespace {

constexpr int kMaxWidth = 10'000;

// [[fill]align][sign][0][width][,][.precision][type], the part of the mini-language in use.
struct Spec {
  std::string fill = " ";
  char align = 0, sign = '-', type = 0;
  bool zero = false, comma = false, alternate = false;
  int width = 0, precision = -1;
};

int parse_number(std::string_view text, size_t& i) {
  int value = 0;
  while (i < text.size() && text[i] >= '0' && text[i] <= '9') {
    value = value * 10 + (text[i++] - '0');
    if (value > kMaxWidth)
      throw JinjaError(fmt::format("limit of format width ({}) exceeded", kMaxWidth));
  }
  return value;
}

std::string digits_of(double value, const Spec& spec, char type, int default_precision) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  const int precision = std::min(spec.precision < 0 ? default_precision : spec.precision, 400);
  const double magnitude = std::fabs(value);
  switch (type) {
    case 'e':
      return fmt::format("{:.{}e}", magnitude, precision);
    case 'E':
      return fmt::format("{:.{}E}", magnitude, precision);
    case 'g':
      return fmt::format("{:.{}g}", magnitude, precision);
    case 'G':
      return fmt::format("{:.{}G}", magnitude, precision);
    case '%':
      return fmt::format("{:.{}f}%", magnitude * 100, precision);
    default:
      return fmt::format("{:.{}f}", magnitude, precision);
  }
}

std::string radix_digits(Integer value, int radix, bool upper) {
  auto magnitude = static_cast<unsigned __int128>(value < 0 ? -value : value);
  const std::string_view digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string out;
  do {
    out.insert(out.begin(), digits[static_cast<size_t>(magnitude % static_cast<unsigned>(radix))]);
    magnitude /= static_cast<unsigned>(radix);
  } while (magnitude != 0);
  return out;
}

void group_thousands(std::string& digits) {
  size_t end = 0;
  while (end < digits.size() && digits[end] >= '0' && digits[end] <= '9') ++end;
  for (size_t at = end; at > 3;) digits.insert(at -= 3, ",");
}

Text pad(const Spec& spec, Text body, char default_align) {
  const size_t length = count_characters(body.view());
  const auto width = static_cast<size_t>(spec.width);
  if (length >= width) return body;
  const char align = spec.align != 0 ? spec.align : default_align;
  const size_t total = width - length;
  const size_t left = align == '>' ? total : align == '^' ? total / 2 : 0;
  Text out;
  for (size_t i = 0; i < left; ++i) out.append(spec.fill, false);
  out.append(body);
  for (size_t i = left; i < total; ++i) out.append(spec.fill, false);
  return out;
}

Text format_number(const Value& value, const Spec& spec) {
  char type = spec.type;
  const bool real = value.is(Kind::kFloat) ||
                    (type != 0 && std::string_view("eEfFgG%").find(type) != std::string_view::npos);
  const bool negative = value.is(Kind::kFloat) ? std::signbit(value.real) : value.integer < 0;
  std::string digits;
  if (real && type == 0 && spec.precision < 0) {
    digits = float_text(std::fabs(value.as_double()));
  } else if (real) {
    digits = digits_of(value.as_double(), spec, type == 0 ? 'g' : type, 6);
  } else if (type == 'x' || type == 'X' || type == 'o' || type == 'b') {
    digits = radix_digits(value.integer, type == 'o' ? 8 : type == 'b' ? 2 : 16, type == 'X');
    if (spec.alternate) digits = std::string("0") + type + digits;
  } else if (type == 0 || type == 'd' || type == 'i' || type == 'u' || type == 'n') {
    digits = integer_text(value.integer);
    if (negative) digits.erase(0, 1);
  } else {
    throw JinjaError(
        fmt::format("Unknown format code '{}' for object of type '{}'", type, type_name(value)));
  }
  if (spec.comma) group_thousands(digits);
  const std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  if (spec.zero && spec.align == 0) {
    const size_t used = digits.size() + sign.size();
    if (used < static_cast<size_t>(spec.width))
      digits.insert(0, static_cast<size_t>(spec.width) - used, '0');
  }
  return pad(spec, Text(sign + digits, value.tainted), '>');
}

Text format_value(Heap& heap, const Value& value, const Spec& spec, bool empty_spec) {
  if (value.is_number() && !(value.is(Kind::kBool) && (empty_spec || spec.type == 's')) &&
      spec.type != 's') {
    if (empty_spec) return text_of(heap, value);
    return format_number(value, spec);
  }
  if (!value.is(Kind::kString) && !empty_spec) {
    throw JinjaError(
        fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }
  if (spec.type != 0 && spec.type != 's') {
    throw JinjaError(fmt::format("Unknown format code '{}' for object of type 'str'", spec.type));
  }
  Text text = text_of(heap, value);
  if (spec.precision >= 0) {
    heap.charge_scan(text.size_bytes());
    const auto offsets = character_offsets(text.view());
    const size_t keep = std::min(static_cast<size_t>(spec.precision), offsets.size() - 1);
    text = text.slice(0, offsets[keep]);
  }
  return pad(spec, std::move(text), '<');
}

Spec parse_spec(std::string_view text) {
  Spec spec;
  size_t i = 0;
  const auto is_align = [&](size_t at) {
    return at < text.size() && std::string_view("<>^=").find(text[at]) != std::string_view::npos;
  };
  const std::vector<size_t> offsets = character_offsets(text);
  if (offsets.size() > 1 && is_align(offsets[1])) {
    spec.fill = std::string(text.substr(0, offsets[1]));
    i = offsets[1];
    spec.align = text[i++];
  } else if (is_align(0)) {
    spec.align = text[i++];
  }
  if (spec.align == '=') throw JinjaError("format alignment '=' is not supported");
  if (i < text.size() && (text[i] == '+' || text[i] == '-' || text[i] == ' '))
    spec.sign = text[i++];
  if (i < text.size() && text[i] == '#') spec.alternate = (++i, true);
  if (i < text.size() && text[i] == '0') spec.zero = (++i, true);
  spec.width = parse_number(text, i);
  if (i < text.size() && text[i] == ',') spec.comma = (++i, true);
  if (i < text.size() && text[i] == '.') spec.precision = parse_number(text, ++i);
  if (i < text.size()) spec.type = text[i++];
  if (i < text.size()) throw JinjaError("Invalid format specifier");
  return spec;
}

}  // namespace

Text percent_format(Heap& heap, const Text& format, const Value& values) {
  const bool is_tuple = values.is(Kind::kTuple);
  size_t next = 0;
  const auto take = [&]() -> Value {
    const size_t available = is_tuple ? values.list().items.size() : 1;
    if (next >= available) throw JinjaError("not enough arguments for format string");
    return is_tuple ? values.list().items[next++] : (++next, values);
  };
  const std::string_view text = format.view();
  Text out;
  for (size_t i = 0; i < text.size();) {
    const size_t percent = std::min(text.find('%', i), text.size());
    out.append(format, i, percent);
    if ((i = percent) == text.size()) break;
    Spec spec;
    std::optional<Value> named;
    if (++i < text.size() && text[i] == '(') {
      const size_t close = text.find(')', i);
      if (close == std::string_view::npos) throw JinjaError("incomplete format key");
      if (!values.is(Kind::kDict)) throw JinjaError("format requires a mapping");
      const Value* found = values.dict().find(heap, text.substr(i + 1, close - i - 1));
      if (found == nullptr)
        throw JinjaError(fmt::format("'{}'", text.substr(i + 1, close - i - 1)));
      named = *found;
      i = close + 1;
    }
    for (; i < text.size() && std::string_view("#0- +").find(text[i]) != std::string_view::npos;
         ++i) {
      if (text[i] == '-') spec.align = '<';
      if (text[i] == '0') spec.zero = true;
      if (text[i] == '+' || (text[i] == ' ' && spec.sign != '+')) spec.sign = text[i];
      if (text[i] == '#') spec.alternate = true;
    }
    spec.width = parse_number(text, i);
    if (i < text.size() && text[i] == '.') spec.precision = parse_number(text, ++i);
    if (i >= text.size()) throw JinjaError("incomplete format");
    const char type = text[i++];
    if (type == '%') {
      out.append("%", false);
      continue;
    }
    Value value = named ? *named : take();
    if (type == 's' || type == 'r' || type == 'a') {
      Value shown = string_value(type == 's' ? text_of(heap, value) : repr_of(heap, value));
      if (spec.align == 0) spec.align = '>';
      out.append(format_value(heap, shown, spec, false));
    } else if (std::string_view("diuxXoeEfFgG").find(type) != std::string_view::npos) {
      if (!value.is_number()) {
        throw JinjaError(
            fmt::format("%{} format: a real number is required, not {}", type, type_name(value)));
      }
      const bool integral = std::string_view("diuxXo").find(type) != std::string_view::npos;
      if (integral && value.is(Kind::kFloat)) value = int_value(truncated(value.real));
      spec.type = type;
      out.append(format_number(value, spec));
    } else {
      throw JinjaError(fmt::format("unsupported format character '{}'", type));
    }
    heap.charge_string(out.size_bytes());
  }
  if (is_tuple ? next < values.list().items.size()
               : next == 0 && !values.is(Kind::kDict) && !values.is(Kind::kList)) {
    throw JinjaError("not all arguments converted during string formatting");
  }
  return out;
}

Text brace_format(Heap& heap, const Text& format, const Arguments& arguments) {
  const std::string_view text = format.view();
  Text out;
  Integer automatic = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", i), text.size());
    out.append(format, i, brace);
    if ((i = brace) == text.size()) break;
    if (i + 1 < text.size() && text[i + 1] == text[i]) {
      out.append(format, i, i + 1);
      i += 2;
      continue;
    }
    const size_t close = text.find('}', i);
    if (text[i] == '}') throw JinjaError("Single '}' encountered in format string");
    if (close == std::string_view::npos)
      throw JinjaError("Single '{' encountered in format string");
    std::string_view field = text.substr(i + 1, close - i - 1);
    i = close + 1;
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string_view spec_text =
        colon < field.size() ? field.substr(colon + 1) : std::string_view();
    field = field.substr(0, colon);
    char conversion = 0;
    if (field.size() >= 2 && field[field.size() - 2] == '!') {
      conversion = field.back();
      field.remove_suffix(2);
    }
    if (spec_text.find('{') != std::string_view::npos)
      throw JinjaError("nested format fields are not supported");
    size_t end = std::min(field.find_first_of(".["), field.size());
    const std::string_view first = field.substr(0, end);
    Value value;
    size_t digits = 0;
    const int index = first.empty() ? static_cast<int>(automatic++) : parse_number(first, digits);
    if (first.empty() || digits == first.size()) {
      if (static_cast<size_t>(index) >= arguments.positional.size()) {
        throw JinjaError(
            fmt::format("Replacement index {} out of range for positional args tuple", index));
      }
      value = arguments.positional[static_cast<size_t>(index)];
    } else {
      const Value* found = arguments.find(first);
      if (found == nullptr) throw JinjaError(fmt::format("'{}'", first));
      value = *found;
    }
    while (end < field.size()) {
      const bool item = field[end] == '[';
      const size_t stop =
          std::min(item ? field.find(']', end) : field.find_first_of(".[", end + 1), field.size());
      const std::string_view name = field.substr(end + 1, stop - end - 1);
      size_t used = 0;
      const int number = item ? parse_number(name, used) : 0;
      if (!item)
        value = get_attribute(heap, value, name);
      else
        value = get_item(heap, value,
                         used > 0 && used == name.size() ? int_value(number) : string_value(name));
      end = item ? std::min(stop + 1, field.size()) : stop;
    }
    if (conversion == 'r') value = string_value(repr_of(heap, value));
    if (conversion == 's') value = string_value(text_of(heap, value));
    out.append(format_value(heap, value, parse_spec(spec_text), spec_text.empty()));
    heap.charge_string(out.size_bytes());
  }
  return out;
}

}  // namespace foresail::jinja
