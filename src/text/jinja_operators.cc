#include "text/jinja_operators.h"

#include <fmt/core.h>

#include <cmath>

#include "text/jinja_format.h"
#include "text/jinja_print.h"

namespace foresail::jinja {
namespace {

const char* symbol(ExprKind op) {
  switch (op) {
    case ExprKind::kAdd:
      return "+";
    case ExprKind::kSub:
      return "-";
    case ExprKind::kMul:
      return "*";
    case ExprKind::kDiv:
      return "/";
    case ExprKind::kFloorDiv:
      return "//";
    case ExprKind::kMod:
      return "%";
    default:
      return "**";
  }
}

[[noreturn]] void overflow() {
  throw JinjaError("integer overflow: results are limited to 127 bits");
}

Integer integer_power(Integer base, Integer exponent) {
  Integer result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) overflow();
  }
  return result;
}

Value integers(ExprKind op, Integer a, Integer b) {
  Integer out = 0;
  switch (op) {
    case ExprKind::kAdd:
      if (__builtin_add_overflow(a, b, &out)) overflow();
      return int_value(out);
    case ExprKind::kSub:
      if (__builtin_sub_overflow(a, b, &out)) overflow();
      return int_value(out);
    case ExprKind::kMul:
      if (__builtin_mul_overflow(a, b, &out)) overflow();
      return int_value(out);
    case ExprKind::kDiv:
      if (b == 0) throw JinjaError("division by zero");
      return float_value(static_cast<double>(a) / static_cast<double>(b));
    case ExprKind::kFloorDiv:
    case ExprKind::kMod: {
      if (b == 0) throw JinjaError("integer division or modulo by zero");
      if (b == -1) {
        if (op == ExprKind::kMod) return int_value(0);
        if (__builtin_sub_overflow(Integer{0}, a, &out)) overflow();
        return int_value(out);
      }
      Integer quotient = a / b, remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        quotient -= 1;
        remainder += b;
      }
      return int_value(op == ExprKind::kMod ? remainder : quotient);
    }
    default:
      if (b >= 0) return int_value(integer_power(a, b));
      if (a == 0) throw JinjaError("0.0 cannot be raised to a negative power");
      return float_value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
}

Value floats(ExprKind op, double a, double b) {
  switch (op) {
    case ExprKind::kAdd:
      return float_value(a + b);
    case ExprKind::kSub:
      return float_value(a - b);
    case ExprKind::kMul:
      return float_value(a * b);
    case ExprKind::kDiv:
      if (b == 0) throw JinjaError("float division by zero");
      return float_value(a / b);
    case ExprKind::kFloorDiv:
    case ExprKind::kMod: {
      if (b == 0) throw JinjaError("float modulo by zero");
      double remainder = std::fmod(a, b);
      if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
      if (remainder == 0) remainder = std::copysign(0.0, b);
      if (op == ExprKind::kMod) return float_value(remainder);
      const double quotient = (a - remainder) / b;
      double whole = std::floor(quotient);
      if (quotient - whole > 0.5) whole += 1.0;
      return float_value(quotient == 0 ? std::copysign(0.0, a / b) : whole);
    }
    default: {
      if (a == 0 && b < 0) throw JinjaError("0.0 cannot be raised to a negative power");
      const double out = std::pow(a, b);
      if (std::isinf(out) && !std::isinf(a) && !std::isinf(b))
        throw JinjaError("numerical result out of range");
      if (std::isnan(out) && !std::isnan(a) && !std::isnan(b))
        throw JinjaError("complex numbers are not supported");
      return float_value(out);
    }
  }
}

Value repeat(Heap& heap, const Value& value, Integer count) {
  if (count < 0) count = 0;
  const size_t unit =
      value.is(Kind::kString) ? value.text->size_bytes() : value.list().items.size();
  Integer total = 0;
  if (__builtin_mul_overflow(static_cast<Integer>(unit), count, &total) ||
      total > (Integer{1} << 40)) {
    total = Integer{1} << 40;
  }
  if (value.is(Kind::kString)) {
    heap.charge_string(static_cast<size_t>(total));
    Text out;
    for (Integer i = 0; unit > 0 && i < count; ++i) out.append(*value.text);
    return string_value(std::move(out));
  }
  heap.charge_items(static_cast<size_t>(total));
  std::vector<Value> items;
  for (Integer i = 0; unit > 0 && i < count; ++i) {
    items.insert(items.end(), value.list().items.begin(), value.list().items.end());
  }
  return heap.list(std::move(items), value.kind);
}

void append_html_escaped(Text& out, const Text& in) {
  for (size_t i = 0; i < in.size_bytes(); ++i) {
    const char c = in.bytes()[i];
    constexpr std::string_view kFrom = "&<>\"'";
    constexpr std::string_view kTo[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const size_t hit = kFrom.find(c);
    if (hit == std::string_view::npos)
      out.append(in, i, i + 1);
    else
      out.append(kTo[hit], in.any_tainted());
  }
}

Value concatenate(Heap& heap, const Value& a, const Value& b) {
  heap.charge_string(a.text->size_bytes() + b.text->size_bytes());
  Text out;
  const bool markup = a.text->markup || b.text->markup;
  for (const Value* side : {&a, &b}) {
    if (markup && !side->text->markup) {
      heap.charge_scan(side->text->size_bytes());
      append_html_escaped(out, *side->text);
    } else {
      out.append(*side->text);
    }
  }
  out.markup = markup;
  return string_value(std::move(out));
}

}  // namespace

Value binary(Heap& heap, ExprKind op, const Value& a, const Value& b) {
  if (op == ExprKind::kMod && a.is(Kind::kString))
    return heap.text(percent_format(heap, *a.text, b));
  if (a.is(Kind::kUndefined)) throw_undefined(a);
  if (b.is(Kind::kUndefined)) throw_undefined(b);
  if (a.is_number() && b.is_number()) {
    Value out = a.is_integral() && b.is_integral() ? integers(op, a.integer, b.integer)
                                                   : floats(op, a.as_double(), b.as_double());
    out.tainted = a.tainted || b.tainted;
    return out;
  }
  if (op == ExprKind::kAdd) {
    if (a.is(Kind::kString) && b.is(Kind::kString)) return concatenate(heap, a, b);
    if (a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
      heap.charge_items(a.list().items.size() + b.list().items.size());
      std::vector<Value> items = a.list().items;
      items.insert(items.end(), b.list().items.begin(), b.list().items.end());
      return heap.list(std::move(items), a.kind);
    }
    if (a.is(Kind::kString) || a.is(Kind::kList) || a.is(Kind::kTuple)) {
      throw JinjaError(
          fmt::format("can only concatenate {0} (not \"{1}\") to {0}", type_name(a), type_name(b)));
    }
  }
  if (op == ExprKind::kMul) {
    const auto repeats = [](const Value& v) {
      return v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kTuple);
    };
    if (repeats(a) && b.is_integral()) return repeat(heap, a, b.integer);
    if (repeats(b) && a.is_integral()) return repeat(heap, b, a.integer);
  }
  throw JinjaError(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op),
                               type_name(a), type_name(b)));
}

Integer truncated(double value) {
  if (std::isnan(value)) throw JinjaError("cannot convert float NaN to integer");
  if (std::isinf(value)) throw JinjaError("cannot convert float infinity to integer");
  if (std::fabs(value) >= 0x1p126) overflow();
  return static_cast<Integer>(value);
}

Value negate(const Value& value) {
  if (value.is(Kind::kUndefined)) throw_undefined(value);
  Value out;
  if (value.is(Kind::kFloat)) {
    out = float_value(-value.real);
  } else if (value.is_integral()) {
    out = integers(ExprKind::kSub, 0, value.integer);
  } else {
    throw JinjaError(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
  }
  out.tainted = value.tainted;
  return out;
}

bool contains(Heap& heap, const Value& container, const Value& item) {
  if (container.is(Kind::kString)) {
    if (!item.is(Kind::kString)) {
      throw JinjaError(
          fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    heap.charge_string(container.text->size_bytes());
    return find_bytes(container.text->view(), item.text->view(), 0) != std::string_view::npos;
  }
  if (container.is(Kind::kDict)) {
    if (!is_hashable(heap, item))
      throw JinjaError(fmt::format("unhashable type: '{}'", type_name(item)));
    return container.dict().find(heap, item) != nullptr;
  }
  if (!container.is_sequence_object() && !container.is(Kind::kUndefined)) {
    throw JinjaError(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  }
  for (const Value& candidate : iterate(heap, container).items) {
    heap.step();
    if (values_equal(heap, candidate, item)) return true;
  }
  return false;
}

}  // namespace foresail::jinja
