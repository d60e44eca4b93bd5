#include "text/jinja_value.h"

#include <fmt/core.h>

#include <algorithm>

#include "text/jinja_heap.h"

namespace foresail::jinja {
namespace {

constexpr size_t kIndexFromEntries = 12;
constexpr int kMaxCompareDepth = 100;

void check_depth(int depth) {
  if (depth > kMaxCompareDepth) {
    throw JinjaError(fmt::format("limit max_value_depth ({}) exceeded", kMaxCompareDepth));
  }
}

bool lists_equal(Heap& heap, const Value& a, const Value& b, int depth) {
  const auto &left = a.list().items, &right = b.list().items;
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!values_equal(heap, left[i], right[i], depth + 1)) return false;
  }
  return true;
}

bool dicts_equal(Heap& heap, const Value& a, const Value& b, int depth) {
  const DictObject &left = a.dict(), &right = b.dict();
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const Value* other = right.find(heap, key);
    if (other == nullptr || !values_equal(heap, value, *other, depth + 1)) return false;
  }
  return true;
}

}  // namespace

ListObject& Value::list() const {
  return *static_cast<ListObject*>(object);
}
DictObject& Value::dict() const {
  return *static_cast<DictObject*>(object);
}

Value none_value() {
  Value out;
  out.kind = Kind::kNone;
  return out;
}
Value bool_value(bool value) {
  Value out;
  out.kind = Kind::kBool;
  out.integer = value ? 1 : 0;
  return out;
}
Value int_value(Integer value) {
  Value out;
  out.kind = Kind::kInt;
  out.integer = value;
  return out;
}
Value float_value(double value) {
  Value out;
  out.kind = Kind::kFloat;
  out.real = value;
  return out;
}
Value string_value(Text text) {
  Value out;
  out.kind = Kind::kString;
  out.text = std::make_shared<const Text>(std::move(text));
  return out;
}
Value string_value(std::string_view template_text) {
  return string_value(Text(std::string(template_text), false));
}
Value undefined_value(std::string why) {
  Value out;
  out.text = std::make_shared<const Text>(std::move(why), false);
  return out;
}

void throw_undefined(const Value& value) {
  throw JinjaError(value.text ? value.bytes() : "value is undefined");
}

const Value* DictObject::find(Heap& heap, std::string_view key) const {
  heap.charge_comparisons(std::min(entries.size(), kIndexFromEntries), key.size());
  if (entries.size() > kIndexFromEntries) {
    auto it = index.find(key);
    return it == index.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name.is(Kind::kString) && name.bytes() == key) return &value;
  }
  return nullptr;
}

const Value* DictObject::find(Heap& heap, const Value& key) const {
  if (key.is(Kind::kString)) return find(heap, std::string_view(key.bytes()));
  if (!is_hashable(heap, key)) return nullptr;
  heap.step(static_cast<int64_t>(entries.size() / 16));
  for (const auto& [name, value] : entries) {
    if (!name.is(Kind::kString) && values_equal(heap, name, key)) return &value;
  }
  return nullptr;
}

void DictObject::set(Heap& heap, const Value& key, Value value) {
  if (const Value* old = find(heap, key)) {
    *const_cast<Value*>(old) = std::move(value);
    return;
  }
  entries.emplace_back(key, std::move(value));
  if (entries.size() <= kIndexFromEntries) return;
  const size_t first = entries.size() == kIndexFromEntries + 1 ? 0 : entries.size() - 1;
  for (size_t i = first; i < entries.size(); ++i) {
    if (entries[i].first.is(Kind::kString)) index[entries[i].first.bytes()] = i;
  }
}

bool DictObject::erase(Heap& heap, const Value& key) {
  auto it = std::find_if(entries.begin(), entries.end(),
                         [&](const auto& entry) { return values_equal(heap, entry.first, key); });
  if (it == entries.end()) return false;
  entries.erase(it);
  index.clear();
  for (size_t i = 0; entries.size() > kIndexFromEntries && i < entries.size(); ++i) {
    if (entries[i].first.is(Kind::kString)) index[entries[i].first.bytes()] = i;
  }
  return true;
}

bool is_truthy(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.real != 0;
    case Kind::kString:
      return !value.text->empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return !value.list().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    default:
      return true;
  }
}

bool is_hashable(Heap& heap, const Value& value, int depth) {
  check_depth(depth);
  if (value.is(Kind::kTuple)) {
    const std::vector<Value>& items = value.list().items;
    heap.step(static_cast<int64_t>(items.size()));
    return std::all_of(items.begin(), items.end(),
                       [&](const Value& item) { return is_hashable(heap, item, depth + 1); });
  }
  return !value.is(Kind::kList) && !value.is(Kind::kDict) && !value.is(Kind::kView);
}

bool values_equal(Heap& heap, const Value& a, const Value& b, int depth) {
  check_depth(depth);
  if (depth > 0) heap.step();
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer == b.integer;
    return a.as_double() == b.as_double();
  }
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      if (a.text == b.text || a.text->size_bytes() != b.text->size_bytes()) return a.text == b.text;
      heap.charge_comparisons(1, a.text->size_bytes());
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
      return lists_equal(heap, a, b, depth);
    case Kind::kDict:
      return dicts_equal(heap, a, b, depth);
    case Kind::kFunction:
      return a.integer == b.integer;
    default:
      return a.object == b.object;
  }
}

bool value_less(Heap& heap, const Value& a, const Value& b, const char* op, int depth) {
  check_depth(depth);
  if (a.is(Kind::kUndefined)) throw_undefined(a);
  if (b.is(Kind::kUndefined)) throw_undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.integer < b.integer;
    return a.as_double() < b.as_double();
  }
  // Byte order of UTF-8 is code point order.
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    heap.charge_comparisons(1, std::min(a.text->size_bytes(), b.text->size_bytes()));
    return a.bytes() < b.bytes();
  }
  if (a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple))) {
    const auto &left = a.list().items, &right = b.list().items;
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!values_equal(heap, left[i], right[i], depth + 1)) {
        return value_less(heap, left[i], right[i], op, depth + 1);
      }
    }
    return left.size() < right.size();
  }
  throw JinjaError(fmt::format("'{}' not supported between instances of '{}' and '{}'", op,
                               type_name(a), type_name(b)));
}

const char* type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kRange:
      return "range";
    case Kind::kGenerator:
      return "generator";
    case Kind::kView:
      return value.list().view_name;
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMethod:
      return "builtin_function_or_method";
    case Kind::kFunction:
      return "function";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

}  // namespace foresail::jinja
