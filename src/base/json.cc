#include "base/json.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <vector>

namespace foresail {
namespace {

// Depth is checked on the raw text first: the parser recurses nowhere, but destructors of nested
// values do, and a million brackets must not reach them.
bool deeper_than(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '[' || c == '{') && ++depth > max_depth) return true;
    if (c == ']' || c == '}') --depth;
  }
  return false;
}

template <typename Value>
Result<Value> parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return input_error(fmt::format("JSON of {} bytes exceeds the limit of {}", text.size(), limits.max_bytes));
  if (text.starts_with("\xEF\xBB\xBF")) return input_error("JSON starts with a byte order mark: remove it");
  if (deeper_than(text, limits.max_depth))
    return input_error(fmt::format("JSON is nested deeper than {} levels", limits.max_depth));

  std::vector<std::set<std::string>> keys;
  std::string duplicate;
  using Event = typename Value::parse_event_t;
  const auto watch_keys = [&](int, Event event, Value& parsed) {
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end && !keys.empty()) keys.pop_back();
    if (event == Event::key && duplicate.empty()) {
      const auto& key = parsed.template get_ref<const std::string&>();
      if (!keys.back().insert(key).second) duplicate = key;
    }
    return true;
  };
  try {
    Value value = Value::parse(text.begin(), text.end(), watch_keys);
    if (!duplicate.empty()) return input_error(fmt::format("JSON repeats the key \"{}\"", duplicate.substr(0, 100)));
    return value;
  } catch (const std::exception& error) {
    return input_error(fmt::format("JSON does not parse: {}", std::string(error.what()).substr(0, 300)));
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  return parse<Json>(text, limits);
}

Result<OrderedJson> parse_ordered_json(std::string_view text, const JsonLimits& limits) {
  return parse<OrderedJson>(text, limits);
}

}  // namespace foresail
