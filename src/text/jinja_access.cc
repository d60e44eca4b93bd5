// Attribute and item access (declared in jinja_interpreter.h). Only what stands here is reachable.
#include <fmt/core.h>

#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace foresail::jinja {
namespace {

using Names = std::initializer_list<std::string_view>;

bool listed(std::string_view name, Names names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Python attributes that exist but change the object; the sandbox forbids them.
bool is_forbidden(const Value& self, std::string_view name) {
  if (name.size() > 4 && name.substr(0, 2) == "__" && name.substr(name.size() - 2) == "__")
    return true;
  if (self.is(Kind::kList))
    return listed(name, {"clear", "extend", "insert", "remove", "reverse", "sort"});
  if (self.is(Kind::kDict)) return listed(name, {"clear", "popitem", "setdefault", "update"});
  return false;
}

// Python methods that are harmless but absent here: the error should say so.
bool is_unsupported(const Value& self, std::string_view name) {
  if (self.is(Kind::kDict)) return name == "fromkeys";
  if (self.is(Kind::kList)) return name == "copy";
  return self.is(Kind::kString) &&
         listed(name, {"casefold", "encode", "expandtabs", "format_map", "isascii", "isdecimal",
                       "isidentifier", "isprintable", "istitle", "maketrans", "rindex",
                       "rpartition", "swapcase", "translate"});
}

std::string owner_name(const Value& value) {
  if (value.is(Kind::kNone)) return "None";
  return fmt::format("{} object", type_name(value));
}

Value missing(const Value& owner, std::string_view name) {
  return undefined_value(fmt::format("'{}' has no attribute '{}'", owner_name(owner), name));
}

// The methods of the value, or the reason why there is none; empty when Python has no such
// attribute.
std::optional<Value> find_method(Heap& heap, const Value& value, std::string_view name) {
  if (has_method(value, name)) {
    MethodObject& method = heap.create<MethodObject>();
    method.self = value;
    method.name = name;
    Value out;
    out.kind = Kind::kMethod;
    out.object = &method;
    return out;
  }
  if (is_forbidden(value, name)) {
    return undefined_value(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
  }
  if (is_unsupported(value, name)) {
    return undefined_value(fmt::format("method '{}' of '{}' is not supported in chat templates",
                                       name, type_name(value)));
  }
  return std::nullopt;
}

}  // namespace

Value get_attribute(Heap& heap, const Value& value, std::string_view name) {
  if (value.is(Kind::kUndefined)) throw_undefined(value);
  if (value.is(Kind::kLoop)) return loop_attribute(heap, value, name);
  if (value.is(Kind::kNamespace)) {
    const Value* found = value.dict().find(heap, name);
    return found != nullptr ? *found : missing(value, name);
  }
  if (auto method = find_method(heap, value, name)) return *method;
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.dict().find(heap, name)) return *found;
  }
  return missing(value, name);
}

Value get_item(Heap& heap, const Value& value, const Value& key) {
  if (value.is(Kind::kUndefined)) throw_undefined(value);
  if (value.is(Kind::kDict)) {
    if (const Value* found = value.dict().find(heap, key)) return *found;
  } else if (key.is_integral()) {
    if (auto found = element(heap, value, key.integer)) return *found;
  }
  if (key.is(Kind::kString)) {
    if (!value.is(Kind::kDict)) return get_attribute(heap, value, key.bytes());
    if (auto method = find_method(heap, value, key.bytes())) return *method;
    return missing(value, key.bytes());
  }
  return undefined_value(
      fmt::format("{} has no element {}", owner_name(value), repr_of(heap, key).bytes()));
}

Value loop_attribute(Heap& heap, const Value& value, std::string_view name) {
  const LoopObject& loop = *static_cast<const LoopObject*>(value.object);
  const std::vector<Value>& items = loop.items->items;
  const auto index0 = static_cast<Integer>(loop.index0),
             length = static_cast<Integer>(items.size());
  if (name == "index") return int_value(index0 + 1);
  if (name == "index0") return int_value(index0);
  if (name == "first") return bool_value(index0 == 0);
  if (name == "last") return bool_value(index0 + 1 >= length);
  if (name == "length") return int_value(length);
  if (name == "revindex") return int_value(length - index0);
  if (name == "revindex0") return int_value(length - index0 - 1);
  if (name == "depth") return int_value(loop.depth0 + 1);
  if (name == "depth0") return int_value(loop.depth0);
  if (name == "previtem") {
    return index0 == 0 || index0 > length ? undefined_value("there is no previous item")
                                          : items[loop.index0 - 1];
  }
  if (name == "nextitem") {
    return index0 + 1 >= length ? undefined_value("there is no next item") : items[loop.index0 + 1];
  }
  if (auto method = find_method(heap, value, name)) return *method;
  return missing(value, name);
}

}  // namespace foresail::jinja
