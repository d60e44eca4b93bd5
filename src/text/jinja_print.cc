#include "text/jinja_print.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/jinja_unicode.h"

namespace foresail::jinja {
namespace {

struct Repr {
  Heap& heap;
  std::string out;
  bool tainted = false;

  void string(const Text& text) {
    heap.charge_scan(text.size_bytes());
    tainted = tainted || text.any_tainted();
    const std::string_view body = text.view();
    const char quote =
        body.find('\'') != std::string_view::npos && body.find('"') == std::string_view::npos
            ? '"'
            : '\'';
    out.push_back(quote);
    for (size_t i = 0; i < body.size();) {
      const Utf8Char c = decode_utf8(body, i);
      const char32_t code = c.code_point;
      if (code == static_cast<char32_t>(quote) || code == '\\') {
        out.push_back('\\');
        out.push_back(static_cast<char>(code));
      } else if (code == '\n' || code == '\r' || code == '\t') {
        out += code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t";
      } else if (is_printable(code)) {
        out.append(body.substr(i, c.length_bytes));
      } else if (code < 0x100) {
        out += fmt::format("\\x{:02x}", static_cast<uint32_t>(code));
      } else {
        out += code < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(code))
                              : fmt::format("\\U{:08x}", static_cast<uint32_t>(code));
      }
      i += c.length_bytes;
    }
    out.push_back(quote);
  }

  void items(const std::vector<Value>& values, int depth) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (i > 0) out += ", ";
      value(values[i], depth + 1);
    }
  }

  void dict(const DictObject& object, int depth) {
    out.push_back('{');
    for (size_t i = 0; i < object.entries.size(); ++i) {
      if (i > 0) out += ", ";
      value(object.entries[i].first, depth + 1);
      out += ": ";
      value(object.entries[i].second, depth + 1);
    }
    out.push_back('}');
  }

  void value(const Value& v, int depth) {
    heap.step();
    if (depth > heap.limits().max_value_depth) {
      throw JinjaError(
          fmt::format("limit max_value_depth ({}) exceeded", heap.limits().max_value_depth));
    }
    if (out.size() > heap.limits().max_string_bytes) heap.charge_string(out.size());
    tainted = tainted || v.tainted;
    switch (v.kind) {
      case Kind::kUndefined:
        out += "Undefined";
        break;
      case Kind::kNone:
        out += "None";
        break;
      case Kind::kBool:
        out += v.integer != 0 ? "True" : "False";
        break;
      case Kind::kInt:
        out += integer_text(v.integer);
        break;
      case Kind::kFloat:
        out += float_text(v.real);
        break;
      case Kind::kString:
        string(*v.text);
        break;
      case Kind::kList:
        out.push_back('[');
        items(v.list().items, depth);
        out.push_back(']');
        break;
      case Kind::kTuple:
        out.push_back('(');
        items(v.list().items, depth);
        out += v.list().items.size() == 1 ? ",)" : ")";
        break;
      case Kind::kRange: {
        const ListObject& range = v.list();
        out += "range(" + integer_text(range.start) + ", " + integer_text(range.stop);
        out += range.step == 1 ? ")" : ", " + integer_text(range.step) + ")";
        break;
      }
      case Kind::kView:
        out += std::string(v.list().view_name) + "([";
        items(v.list().items, depth);
        out += "])";
        break;
      case Kind::kDict:
        dict(v.dict(), depth);
        break;
      case Kind::kNamespace:
        out += "<Namespace ";
        dict(v.dict(), depth);
        out.push_back('>');
        break;
      default:
        out += fmt::format("<{}>", type_name(v));
        break;
    }
  }
};

}  // namespace

std::string integer_text(Integer value) {
  const bool negative = value < 0;
  auto magnitude = static_cast<unsigned __int128>(value);
  if (negative) magnitude = -magnitude;
  std::string digits;
  do {
    digits.push_back(static_cast<char>('0' + static_cast<int>(magnitude % 10)));
    magnitude /= 10;
  } while (magnitude != 0);
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text[0] == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(),
                  exponent);
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "");
    return out + fmt::format("e{}{:02d}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  return out + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

void append_text(Heap& heap, Text& out, const Value& value) {
  if (value.is(Kind::kUndefined)) return;
  if (value.is(Kind::kString)) {
    heap.charge_string(out.size_bytes() + value.text->size_bytes());
    out.append(*value.text);
    return;
  }
  out.append(repr_of(heap, value));
}

Text text_of(Heap& heap, const Value& value) {
  if (value.is(Kind::kString)) {
    heap.charge_string(value.text->size_bytes());
    return *value.text;
  }
  return value.is(Kind::kUndefined) ? Text() : repr_of(heap, value);
}

Text repr_of(Heap& heap, const Value& value) {
  Repr repr{heap, {}};
  repr.value(value, 0);
  heap.charge_string(repr.out.size());
  return Text(std::move(repr.out), repr.tainted);
}

}  // namespace foresail::jinja
