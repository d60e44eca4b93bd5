// Bound methods of lists, dicts and loops, and the global functions (declared in
// jinja_interpreter.h).
#include <fmt/core.h>

#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"

namespace foresail::jinja {
namespace {

Value view(Heap& heap, const DictObject& dict, const char* name, std::string_view which) {
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) {
    if (which == "items")
      out.push_back(heap.list({key, value}, Kind::kTuple));
    else
      out.push_back(which == "keys" ? key : value);
  }
  Value result = heap.list(std::move(out), Kind::kView);
  result.list().view_name = name;
  return result;
}

Value call_dict_method(Heap& heap, const Value& self, std::string_view name,
                       const Arguments& arguments) {
  DictObject& dict = self.dict();
  if (name == "get" || name == "pop") {
    const Bound args(name, arguments, {"key", "default"});
    const Value& key = args.required(0);
    if (!is_hashable(heap, key))
      throw JinjaError(fmt::format("unhashable type: '{}'", type_name(key)));
    if (const Value* found = dict.find(heap, key)) {
      const Value out = *found;
      heap.step(name == "pop" ? static_cast<int64_t>(dict.entries.size() / 8) : 0);
      if (name == "pop") dict.erase(heap, key);
      return out;
    }
    if (name == "pop" && !args.has(1)) throw JinjaError(repr_of(heap, key).bytes());
    return args.has(1) ? args[1] : none_value();
  }
  const Bound none(name, arguments, {});
  if (name == "items") return view(heap, dict, "dict_items", name);
  if (name == "keys") return view(heap, dict, "dict_keys", name);
  if (name == "values") return view(heap, dict, "dict_values", name);
  const Value copy = heap.dict();
  for (const auto& [key, value] : dict.entries) heap.set(copy.dict(), key, value);
  return copy;
}

Value call_list_method(Heap& heap, const Value& self, std::string_view name,
                       const Arguments& arguments) {
  std::vector<Value>& items = self.list().items;
  if (name == "append") {
    const Bound args(name, arguments, {"object"});
    heap.append(self.list(), args.required(0));
    return none_value();
  }
  if (name == "pop") {
    const Bound args(name, arguments, {"index"});
    if (items.empty()) throw JinjaError("pop from empty list");
    const auto length = static_cast<Integer>(items.size());
    Integer index = args.integer(0, -1);
    if (index < 0) index += length;
    if (index < 0 || index >= length) throw JinjaError("pop index out of range");
    heap.step(static_cast<int64_t>((length - index) / 8));
    const auto at = items.begin() + static_cast<long>(index);
    Value out = *at;
    items.erase(at);
    return out;
  }
  const Bound args(name, arguments, {"value"});
  Integer count = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    heap.step();
    if (!values_equal(heap, items[i], args.required(0))) continue;
    if (name == "index") return int_value(static_cast<Integer>(i));
    ++count;
  }
  if (name == "index") throw JinjaError("value is not in list");
  return int_value(count);
}

Value call_loop_method(Heap& heap, LoopObject& loop, std::string_view name,
                       const Arguments& arguments) {
  const std::vector<Value>& values = arguments.positional;
  if (name == "cycle") {
    if (values.empty()) throw JinjaError("no items for cycling given");
    return values[loop.index0 % values.size()];
  }
  const bool same =
      loop.last_changed && loop.last_changed->size() == values.size() &&
      std::equal(values.begin(), values.end(), loop.last_changed->begin(),
                 [&](const Value& a, const Value& b) { return values_equal(heap, a, b); });
  if (!same) loop.last_changed = values;
  return bool_value(!same);
}

// dict(mapping or pairs, **named): also the constructor of namespaces.
Value make_dict(Heap& heap, const Arguments& arguments) {
  const Value out = heap.dict();
  if (arguments.positional.size() > 1) throw JinjaError("dict expected at most 1 argument");
  for (const Value& source : arguments.positional) {
    if (source.is(Kind::kDict)) {
      for (const auto& [key, value] : source.dict().entries) heap.set(out.dict(), key, value);
      continue;
    }
    if (source.is(Kind::kUndefined)) throw_undefined(source);
    for (const Value& pair : iterate(heap, source).items) {
      const std::vector<Value>& parts = iterate(heap, pair).items;
      if (parts.size() != 2)
        throw JinjaError("dictionary update sequence element must have length 2");
      heap.set(out.dict(), parts[0], parts[1]);
    }
  }
  for (const auto& [key, value] : arguments.named) heap.set(out.dict(), string_value(key), value);
  return out;
}

Value make_namespace(Heap& heap, const Arguments& arguments) {
  Value out = make_dict(heap, arguments);
  for (const auto& [key, value] : out.dict().entries) {
    if (key.is(Kind::kString) && key.bytes().starts_with("_")) {
      throw JinjaError("Chat templates cannot store underscore-prefixed attributes on a namespace");
    }
  }
  out.kind = Kind::kNamespace;
  return out;
}

Value range(Heap& heap, const Arguments& arguments) {
  const Bound args("range", arguments, {"start", "stop", "step"});
  args.required(0);
  if (!args.has(1)) return make_range(heap, 0, args.integer(0, 0), 1);
  return make_range(heap, args.integer(0, 0), args.integer(1, 0), args.integer(2, 1));
}

Value strftime_now(Interpreter& interpreter, const Arguments& arguments) {
  const Bound args("strftime_now", arguments, {"format"});
  const std::string& format = args.string(0).bytes();
  if (format.empty()) return string_value("");
  if (format.size() > 1000) throw JinjaError("limit of strftime_now format (1000 bytes) exceeded");
  const std::time_t now = interpreter.now();
  std::tm local{};
  localtime_r(&now, &local);
  std::string out(format.size() * 64 + 256, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &local));
  return string_value(Text(std::move(out), args.string(0).any_tainted()));
}

constexpr const char* kGlobals[] = {"range", "dict", "namespace", "raise_exception",
                                    "strftime_now"};

}  // namespace

bool has_method(const Value& self, std::string_view name) {
  static const std::vector<std::string_view> kString = {
      "capitalize", "center",  "count",   "endswith", "find",      "format",       "index",
      "isalnum",    "isalpha", "isdigit", "islower",  "isnumeric", "isspace",      "isupper",
      "join",       "ljust",   "lower",   "lstrip",   "partition", "removeprefix", "removesuffix",
      "replace",    "rfind",   "rjust",   "rsplit",   "rstrip",    "split",        "splitlines",
      "startswith", "strip",   "title",   "upper",    "zfill"};
  static const std::vector<std::string_view> kDict = {"copy", "get", "items",
                                                      "keys", "pop", "values"};
  static const std::vector<std::string_view> kList = {"append", "count", "index", "pop"};
  static const std::vector<std::string_view> kTuple = {"count", "index"};
  static const std::vector<std::string_view> kLoop = {"changed", "cycle"};
  static const std::vector<std::string_view> kNone;
  const auto& names = self.is(Kind::kString)  ? kString
                      : self.is(Kind::kDict)  ? kDict
                      : self.is(Kind::kList)  ? kList
                      : self.is(Kind::kTuple) ? kTuple
                      : self.is(Kind::kRange) ? kTuple
                      : self.is(Kind::kLoop)  ? kLoop
                                              : kNone;
  return std::find(names.begin(), names.end(), name) != names.end();
}

Value call_method(Interpreter& interpreter, const MethodObject& method,
                  const Arguments& arguments) {
  const Value& self = method.self;
  Heap& heap = interpreter.heap();
  if (self.is(Kind::kString)) return call_string_method(heap, *self.text, method.name, arguments);
  if (self.is(Kind::kDict)) return call_dict_method(heap, self, method.name, arguments);
  if (self.is(Kind::kLoop))
    return call_loop_method(heap, *static_cast<LoopObject*>(self.object), method.name, arguments);
  return call_list_method(heap, self, method.name, arguments);
}

std::optional<Value> find_global(std::string_view name) {
  const auto* it = std::find(std::begin(kGlobals), std::end(kGlobals), name);
  if (it == std::end(kGlobals)) return std::nullopt;
  Value out;
  out.kind = Kind::kFunction;
  out.integer = it - std::begin(kGlobals);
  return out;
}

Value call_global(Interpreter& interpreter, Integer id, const Arguments& arguments) {
  Heap& heap = interpreter.heap();
  switch (static_cast<int>(id)) {
    case 0:
      return range(heap, arguments);
    case 1:
      return make_dict(heap, arguments);
    case 2:
      return make_namespace(heap, arguments);
    case 3: {
      const Bound args("raise_exception", arguments, {"message"});
      throw JinjaError(text_of(heap, args.required(0)).bytes());
    }
    default:
      return strftime_now(interpreter, arguments);
  }
}

}  // namespace foresail::jinja
