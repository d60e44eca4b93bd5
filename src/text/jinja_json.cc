#include "text/jinja_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/jinja_print.h"

namespace foresail::jinja {
namespace {

class Writer {
 public:
  Writer(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  void value(const Value& v, int depth) {
    heap_.step();
    if (depth > heap_.limits().max_value_depth) {
      throw JinjaError(
          fmt::format("limit max_value_depth ({}) exceeded", heap_.limits().max_value_depth));
    }
    if (out.size() > heap_.limits().max_string_bytes) heap_.charge_string(out.size());
    tainted = tainted || v.tainted;
    switch (v.kind) {
      case Kind::kNone:
        out += "null";
        return;
      case Kind::kBool:
        out += v.integer != 0 ? "true" : "false";
        return;
      case Kind::kInt:
        out += integer_text(v.integer);
        return;
      case Kind::kFloat:
        out += number(v.real);
        return;
      case Kind::kString:
        string(*v.text);
        return;
      case Kind::kList:
      case Kind::kTuple:
        return array(v.list().items, depth);
      case Kind::kDict:
        return object(v.dict(), depth);
      default:
        throw JinjaError(fmt::format("Object of type {} is not JSON serializable", type_name(v)));
    }
  }

  std::string out;
  bool tainted = false;

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void unit(char32_t code) { out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code)); }

  void string(const Text& text) {
    heap_.charge_scan(text.size_bytes());
    tainted = tainted || text.any_tainted();
    const std::string_view body = text.view();
    out.push_back('"');
    for (size_t i = 0; i < body.size();) {
      const Utf8Char c = decode_utf8(body, i);
      const char32_t code = c.code_point;
      constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
      const size_t simple =
          code < 0x80 ? kFrom.find(static_cast<char>(code)) : std::string_view::npos;
      if (simple != std::string_view::npos) {
        out.push_back('\\');
        out.push_back(kTo[simple]);
      } else if (code < 0x20 || (style_.ensure_ascii && code > 0x7e && code < 0x10000)) {
        unit(code);
      } else if (style_.ensure_ascii && code >= 0x10000) {
        unit(0xd800 + ((code - 0x10000) >> 10));
        unit(0xdc00 + ((code - 0x10000) & 0x3ff));
      } else {
        out.append(body.substr(i, c.length_bytes));
      }
      i += c.length_bytes;
    }
    out.push_back('"');
  }

  void line_break(int depth) {
    if (!style_.pretty) return;
    heap_.charge_string(style_.indent.size() * static_cast<size_t>(depth));
    out.push_back('\n');
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }

  void array(const std::vector<Value>& items, int depth) {
    out.push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      line_break(depth + 1);
      value(items[i], depth + 1);
    }
    if (!items.empty()) line_break(depth);
    out.push_back(']');
  }

  void key(const Value& k) {
    if (k.is(Kind::kString)) return string(*k.text);
    if (!k.is(Kind::kNone) && !k.is_number()) {
      throw JinjaError(
          fmt::format("keys must be str, int, float, bool or None, not {}", type_name(k)));
    }
    out.push_back('"');
    value(k, 0);
    out.push_back('"');
  }

  void object(const DictObject& dict, int depth) {
    auto entries = std::vector<const std::pair<Value, Value>*>();
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
        return value_less(heap_, a->first, b->first);
      });
    }
    out.push_back('{');
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      line_break(depth + 1);
      key(entries[i]->first);
      out += style_.key_separator;
      value(entries[i]->second, depth + 1);
    }
    if (!entries.empty()) line_break(depth);
    out.push_back('}');
  }

  Heap& heap_;
  const JsonStyle& style_;
};

}  // namespace

Text json_of(Heap& heap, const Value& value, const JsonStyle& style) {
  Writer writer(heap, style);
  writer.value(value, 0);
  heap.charge_string(writer.out.size());
  return Text(std::move(writer.out), writer.tainted);
}

}  // namespace foresail::jinja
