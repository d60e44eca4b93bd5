// Filters over lists and dicts.
#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "text/jinja_filters.h"
#include "text/jinja_operators.h"
#include "text/jinja_print.h"
#include "text/jinja_strings.h"

namespace foresail::jinja {
namespace {

Value length(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound none("length", arguments, {});
  return int_value(length_of(in.heap(), input));
}

Value list_filter(Interpreter& in, const Value& input, const Arguments&) {
  return in.heap().list(iterate(in.heap(), input).items);
}

Value first(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is(Kind::kGenerator)) {
    ListObject& list = input.list();
    if (list.cursor < list.items.size()) return list.items[list.cursor++];
    return undefined_value("No first item, sequence was empty.");
  }
  const std::vector<Value>& items = iterate(in.heap(), input).items;
  return items.empty() ? undefined_value("No first item, sequence was empty.") : items.front();
}

Value last(Interpreter& in, const Value& input, const Arguments&) {
  if (input.is(Kind::kGenerator)) throw JinjaError("'generator' object is not reversible");
  if (input.is(Kind::kUndefined)) return undefined_value("No last item, sequence was empty.");
  const std::vector<Value>& items = iterate(in.heap(), input).items;
  return items.empty() ? undefined_value("No last item, sequence was empty.") : items.back();
}

Value join(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("join", arguments, {"d", "attribute"});
  Heap& heap = in.heap();
  const Text separator = args.has(0) ? text_of(heap, args[0]) : Text();
  Text out;
  bool is_first = true;
  for (const Value& item : iterate(heap, input).items) {
    heap.step();
    heap.charge_string(separator.size_bytes());
    if (!is_first) out.append(separator);
    is_first = false;
    // Appending costs the piece, not the whole: charge the total once, below.
    const Text piece =
        text_of(heap, args.has_value(1) ? attribute_path(heap, item, args[1]) : item);
    out.append(piece);
    if (out.size_bytes() > heap.limits().max_string_bytes) heap.charge_string(out.size_bytes());
  }
  return heap.text(std::move(out));
}

Value items(Interpreter& in, const Value& input, const Arguments&) {
  Heap& heap = in.heap();
  if (input.is(Kind::kUndefined)) return heap.list({}, Kind::kGenerator);
  if (!input.is(Kind::kDict)) throw JinjaError("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, value] : input.dict().entries)
    out.push_back(heap.list({key, value}, Kind::kTuple));
  return heap.list(std::move(out), Kind::kGenerator);
}

Arguments rest_of(const Arguments& arguments, size_t skip) {
  Arguments out = arguments;
  out.positional.erase(out.positional.begin(), out.positional.begin() + static_cast<long>(skip));
  return out;
}

const std::string& name_argument(const Arguments& arguments, size_t i, const char* what) {
  if (i >= arguments.positional.size()) throw JinjaError(what);
  if (!arguments.positional[i].is(Kind::kString))
    throw JinjaError("a filter or test name must be a string");
  return arguments.positional[i].bytes();
}

Value map(Interpreter& in, const Value& input, const Arguments& arguments) {
  Heap& heap = in.heap();
  std::vector<Value> out;
  if (!is_truthy(input)) return heap.list({}, Kind::kGenerator);
  if (arguments.positional.empty() && arguments.find("attribute") != nullptr) {
    const Bound args("map", arguments, {"attribute", "default"});
    for (const Value& item : iterate(heap, input).items) {
      heap.step();
      out.push_back(attribute_path(heap, item, args[0], args.has_value(1) ? &args[1] : nullptr));
    }
    return heap.list(std::move(out), Kind::kGenerator);
  }
  const std::string& name = name_argument(arguments, 0, "map requires a filter argument");
  const Arguments rest = rest_of(arguments, 1);
  for (const Value& item : iterate(heap, input).items) out.push_back(in.filter(name, item, rest));
  return heap.list(std::move(out), Kind::kGenerator);
}

template <bool kByAttribute, bool kKeep>
Value select(Interpreter& in, const Value& input, const Arguments& arguments) {
  Heap& heap = in.heap();
  if (!is_truthy(input)) return heap.list({}, Kind::kGenerator);
  constexpr size_t kSkip = kByAttribute ? 1 : 0;
  if (arguments.positional.size() < kSkip) throw JinjaError("Missing parameter for attribute name");
  const bool has_test = arguments.positional.size() > kSkip;
  const Arguments rest = rest_of(arguments, has_test ? kSkip + 1 : kSkip);
  std::vector<Value> out;
  for (const Value& item : iterate(heap, input).items) {
    heap.step();
    const Value subject = kByAttribute ? attribute_path(heap, item, arguments.positional[0]) : item;
    const bool hit =
        has_test ? in.test(name_argument(arguments, kSkip, ""), subject, rest) : is_truthy(subject);
    if (hit == kKeep) out.push_back(item);
  }
  return heap.list(std::move(out), Kind::kGenerator);
}

Value unique(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("unique", arguments, {"case_sensitive", "attribute"});
  Heap& heap = in.heap();
  std::vector<Value> out;
  const Value seen = heap.dict();
  for (const Value& item : iterate(heap, input).items) {
    const Value subject = args.has_value(1) ? attribute_path(heap, item, args[1]) : item;
    const Value key = comparison_key(heap, subject, args.truthy(0, false));
    if (!is_hashable(heap, key))
      throw JinjaError(fmt::format("unhashable type: '{}'", type_name(key)));
    heap.step();
    if (seen.dict().find(heap, key) != nullptr) continue;
    heap.set(seen.dict(), key, none_value());
    out.push_back(item);
  }
  return heap.list(std::move(out), Kind::kGenerator);
}

Value reverse(Interpreter& in, const Value& input, const Arguments&) {
  Heap& heap = in.heap();
  if (input.is(Kind::kString)) return slice(heap, input, {std::nullopt, std::nullopt, -1});
  std::vector<Value> out = iterate(heap, input).items;
  std::reverse(out.begin(), out.end());
  return heap.list(std::move(out), input.is(Kind::kGenerator) ? Kind::kList : Kind::kGenerator);
}

void sort_by_key(Heap& heap, std::vector<std::pair<Value, Value>>& keyed, bool descending) {
  const auto count = static_cast<int64_t>(keyed.size());
  for (int64_t n = count; n > 1; n /= 2) heap.step(count);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return descending ? value_less(heap, b.first, a.first) : value_less(heap, a.first, b.first);
  });
}

Value sort(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  Heap& heap = in.heap();
  std::vector<Value> paths;
  if (args.has_value(2) && args[2].is(Kind::kString)) {
    paths = split(heap, *args[2].text, Text(",", false), -1, false);
  } else if (args.has_value(2)) {
    paths = {args[2]};
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : iterate(heap, input).items) {
    std::vector<Value> keys;
    if (paths.empty()) keys.push_back(comparison_key(heap, item, args.truthy(1, false)));
    for (const Value& path : paths) {
      keys.push_back(comparison_key(heap, attribute_path(heap, item, path), args.truthy(1, false)));
    }
    keyed.emplace_back(heap.list(std::move(keys)), item);
  }
  sort_by_key(heap, keyed, args.truthy(0, false));
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return heap.list(std::move(out));
}

Value dictsort(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  Heap& heap = in.heap();
  if (input.is(Kind::kUndefined)) throw_undefined(input);
  if (!input.is(Kind::kDict)) throw JinjaError("dictsort needs a mapping");
  const std::string by = args.has(1) ? args.string(1).bytes() : "key";
  if (by != "key" && by != "value")
    throw JinjaError("You can only sort by either \"key\" or \"value\"");
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict().entries) {
    keyed.emplace_back(comparison_key(heap, by == "key" ? key : value, args.truthy(0, false)),
                       heap.list({key, value}, Kind::kTuple));
  }
  sort_by_key(heap, keyed, args.truthy(2, false));
  std::vector<Value> out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return heap.list(std::move(out));
}

template <bool kMaximum>
Value extreme(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("min/max", arguments, {"case_sensitive", "attribute"});
  Heap& heap = in.heap();
  const std::vector<Value>& all = iterate(heap, input).items;
  if (all.empty()) return undefined_value("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& item) {
    heap.step();
    return comparison_key(heap, args.has_value(1) ? attribute_path(heap, item, args[1]) : item,
                          args.truthy(0, false));
  };
  const Value* best = &all[0];
  Value best_key = key(*best);
  for (size_t i = 1; i < all.size(); ++i) {
    Value candidate = key(all[i]);
    if (kMaximum ? value_less(heap, best_key, candidate) : value_less(heap, candidate, best_key)) {
      best = &all[i];
      best_key = std::move(candidate);
    }
  }
  return *best;
}

Value sum(Interpreter& in, const Value& input, const Arguments& arguments) {
  const Bound args("sum", arguments, {"attribute", "start"});
  Heap& heap = in.heap();
  Value total = args.has(1) ? args[1] : int_value(0);
  if (total.is(Kind::kString)) throw JinjaError("sum() can't sum strings");
  for (const Value& item : iterate(heap, input).items) {
    heap.step();
    total = binary(heap, ExprKind::kAdd, total,
                   args.has_value(0) ? attribute_path(heap, item, args[0]) : item);
  }
  return total;
}

}  // namespace

Filter find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"length", length},
      {"count", length},
      {"list", list_filter},
      {"first", first},
      {"last", last},
      {"join", join},
      {"items", items},
      {"map", map},
      {"unique", unique},
      {"reverse", reverse},
      {"select", select<false, true>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<true, false>},
      {"sort", sort},
      {"dictsort", dictsort},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"sum", sum}};
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

Value attribute_path(Heap& heap, Value item, const Value& path, const Value* fallback) {
  const auto step = [&](const Value& key) {
    item = get_item(heap, item, key);
    if (item.is(Kind::kUndefined) && fallback != nullptr) item = *fallback;
  };
  if (!path.is(Kind::kString)) {
    step(path);
    return item;
  }
  for (const Value& part : split(heap, *path.text, Text(".", false), -1, false)) {
    const std::string& name = part.bytes();
    int64_t index = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
    const bool digits =
        !name.empty() && name[0] != '-' && error == std::errc() && end == name.data() + name.size();
    step(digits ? int_value(index) : part);
  }
  return item;
}

Value comparison_key(Heap& heap, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kString)) return value;
  return string_value(map_case(heap, *value.text, Casing::kLower));
}

}  // namespace foresail::jinja
