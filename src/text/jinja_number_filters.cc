// Filters that make numbers.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"

namespace foresail::jinja {
namespace {

// Python's int(text, base): sign, underscores between digits, white space around.
std::optional<Integer> parse_integer(Heap& heap, const Text& text, Integer base) {
  std::string body = strip(heap, text, nullptr, true, true).bytes();
  bool negative = false;
  if (!body.empty() && (body[0] == '-' || body[0] == '+')) {
    negative = body[0] == '-';
    body.erase(0, 1);
  }
  const auto prefixed = [&](const char* lower, const char* upper) {
    return body.starts_with(lower) || body.starts_with(upper);
  };
  const Integer prefix = prefixed("0x", "0X")   ? 16
                         : prefixed("0o", "0O") ? 8
                         : prefixed("0b", "0B") ? 2
                                                : 0;
  if (prefix != 0 && (base == prefix || base == 0)) {
    body.erase(0, 2);
    base = prefix;
    if (body.starts_with("_")) body.erase(0, 1);
  }
  if (base == 0) base = 10;
  if (body.empty() || body.back() == '_') return std::nullopt;
  Integer value = 0;
  char previous = '_';
  for (char c : body) {
    if (c == '_') {
      if (previous == '_') return std::nullopt;
      previous = c;
      continue;
    }
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 99;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) ||
        __builtin_add_overflow(value, static_cast<Integer>(digit), &value)) {
      throw JinjaError("integer overflow: results are limited to 127 bits");
    }
    previous = c;
  }
  return negative ? -value : value;
}

std::optional<double> parse_double(Heap& heap, const Text& text) {
  const std::string stripped = strip(heap, text, nullptr, true, true).bytes();
  std::string body;
  for (size_t i = 0; i < stripped.size(); ++i) {
    const auto digit = [&](size_t at) {
      return at < stripped.size() && stripped[at] >= '0' && stripped[at] <= '9';
    };
    if (stripped[i] == '_' && i > 0 && digit(i - 1) && digit(i + 1)) continue;
    body.push_back(stripped[i]);
  }
  if (body.starts_with("+")) {
    body.erase(0, 1);
    if (body.starts_with("-")) return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (body.empty() || end != body.data() + body.size() || error == std::errc::invalid_argument)
    return std::nullopt;
  if (body.find('(') != std::string::npos) return std::nullopt;  // from_chars reads nan(...)
  if (error == std::errc::result_out_of_range) {
    const bool tiny = body.find("e-") != std::string::npos || body.find("E-") != std::string::npos;
    value = std::copysign(tiny ? 0.0 : HUGE_VAL, body[0] == '-' ? -1.0 : 1.0);
  }
  return value;
}

Value int_filter(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("int", arguments, {"default", "base"});
  Value fallback = args.has(0) ? args[0] : int_value(0);
  std::optional<Integer> out;
  if (input.is_integral()) out = input.integer;
  if (input.is(Kind::kFloat) && std::isfinite(input.real)) out = truncated(input.real);
  if (input.is(Kind::kUndefined)) throw_undefined(input);
  if (input.is(Kind::kString)) {
    out = parse_integer(in.heap(), *input.text, args.integer(1, 10));
    const auto real = out ? std::nullopt : parse_double(in.heap(), *input.text);
    if (real && std::isfinite(*real)) out = truncated(*real);
  }
  if (!out) return fallback;
  Value result = int_value(*out);
  result.tainted = input.tainted || (input.is(Kind::kString) && input.text->any_tainted());
  return result;
}

Value float_filter(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("float", arguments, {"default"});
  if (input.is(Kind::kUndefined)) throw_undefined(input);
  Value result = args.has(0) ? args[0] : float_value(0.0);
  if (input.is_number()) result = float_value(input.as_double());
  if (input.is(Kind::kString)) {
    if (const auto real = parse_double(in.heap(), *input.text)) result = float_value(*real);
    result.tainted = input.text->any_tainted();
  }
  result.tainted = result.tainted || input.tainted;
  return result;
}

Value abs_filter(Interpreter&, const Value& input, const Arguments&) {
  if (input.is(Kind::kUndefined)) throw_undefined(input);
  if (!input.is_number())
    throw JinjaError(fmt::format("bad operand type for abs(): '{}'", type_name(input)));
  const bool negative = input.is(Kind::kFloat) ? std::signbit(input.real) : input.integer < 0;
  if (negative) return negate(input);
  return input.is(Kind::kBool) ? negate(negate(input)) : input;
}

// round-half-even on the exact decimal value, as Python: printf rounds exactly.
double round_to(double value, int digits) {
  if (!std::isfinite(value) || digits > 300) return value;
  if (digits >= 0) return std::stod(fmt::format("{:.{}f}", value, digits));
  const double unit = std::pow(10.0, std::min(-digits, 310));
  return std::isinf(unit) ? std::copysign(0.0, value) : std::nearbyint(value / unit) * unit;
}

Value round_filter(Interpreter&, const Value& input, const Arguments& arguments) {
  const Bound args("round", arguments, {"precision", "method"});
  if (input.is(Kind::kUndefined)) throw_undefined(input);
  if (!input.is_number())
    throw JinjaError(fmt::format("type {} doesn't define __round__ method", type_name(input)));
  const std::string method = args.has(1) ? args.string(1).bytes() : "common";
  const Integer wanted = args.integer(0, 0);
  const int digits = static_cast<int>(std::clamp<Integer>(wanted, -400, 400));
  Value out;
  if (method == "common") {
    if (input.is_integral() && digits >= 0)
      out = int_value(input.integer);
    else if (input.is_integral())
      out = int_value(truncated(round_to(input.as_double(), digits)));
    else
      out = float_value(round_to(input.real, digits));
  } else if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, digits);
    const double scaled = input.as_double() * scale;
    out = float_value((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  } else {
    throw JinjaError("method must be common, ceil or floor");
  }
  out.tainted = input.tainted;
  return out;
}

}  // namespace

Filter find_number_filter(std::string_view name) {
  if (name == "int") return int_filter;
  if (name == "float") return float_filter;
  if (name == "abs") return abs_filter;
  if (name == "round") return round_filter;
  return nullptr;
}

}  // namespace foresail::jinja
