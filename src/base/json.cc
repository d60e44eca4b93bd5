#include "base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/json_tree.h"

namespace foresail {
namespace {

// Some bytes of the text, as they may stand in a one-line message.
std::string shown(std::string_view text, size_t max_bytes) {
  return ascii_json_text(text.substr(0, max_bytes));
}

// `position`: bytes that the parser had read when it stopped, the last of them the offending one.
std::string syntax_message(std::string_view text, size_t position) {
  if (position > text.size())
    return text.empty() ? "JSON is empty" : "JSON ends before its value is complete";
  const size_t at = position == 0 ? 0 : position - 1;
  const std::string_view before = text.substr(0, at);
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 == 0
  return fmt::format("JSON does not parse at line {}, column {}, near {}",
                     1 + std::count(before.begin(), before.end(), '\n'), at - line_begin + 1,
                     shown(text.substr(at), 20));
}

// Builds the value as the parser reads it, and stops it at the first fault. Nearly linear in the
// text, whatever it holds.
template <typename Value>
class Builder {
 public:
  Builder(std::string_view text, int max_depth) : text_(text), max_depth_(max_depth) {}
  ~Builder() { take_apart(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) { return add(value); }
  bool number_float(double value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(typename Value::binary_t&) { return false; }  // not in JSON text
  bool start_object(size_t) { return open(Value::value_t::object); }
  bool start_array(size_t) { return open(Value::value_t::array); }
  bool end_object() {
    if constexpr (kKeepsOrder) keys_.pop_back();
    return close();
  }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    auto& object = open_.back()->template get_ref<typename Value::object_t&>();
    bool is_new;
    if constexpr (kKeepsOrder) {  // a vector of pairs, which would be searched for every key
      is_new = keys_.back().insert(name).second;
      if (is_new) member_ = &object.emplace_back(std::move(name), nullptr).second;
    } else {
      const auto [member, inserted] = object.try_emplace(std::move(name), nullptr);
      member_ = &member->second;
      is_new = inserted;
      if (!is_new) name = member->first;
    }
    return is_new || fail("JSON repeats the key " + shown(name, 100));
  }

  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    return fail(syntax_message(text_, position));
  }

  const std::string& fault() const { return fault_; }
  Value take() { return std::move(root_); }

 private:
  static constexpr bool kKeepsOrder = std::is_same_v<Value, OrderedJson>;

  template <typename Item>
  Value* place(Item&& item) {
    if (open_.empty()) return &(root_ = Value(std::forward<Item>(item)));
    if (!open_.back()->is_array()) return &(*member_ = Value(std::forward<Item>(item)));
    return &open_.back()->emplace_back(std::forward<Item>(item));
  }
  template <typename Item>
  bool add(Item&& item) {
    place(std::forward<Item>(item));
    return true;
  }
  bool open(typename Value::value_t kind) {
    if (open_.size() >= static_cast<size_t>(max_depth_))
      return fail(fmt::format("JSON is nested deeper than {} levels", max_depth_));
    open_.push_back(place(kind));
    if constexpr (kKeepsOrder)
      if (kind == Value::value_t::object) keys_.emplace_back();
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  bool fail(std::string message) {
    fault_ = std::move(message);
    return false;
  }

  std::string_view text_;
  int max_depth_;
  Value root_;
  std::vector<Value*> open_;  // containers around the next value
  // Of the open objects, if ordered. No hashes: whoever sends keys can choose them to collide.
  std::vector<std::set<std::string>> keys_;
  Value* member_ = nullptr;  // of the innermost object
  std::string fault_;
};

template <typename Value>
Result<Value> parse(std::string_view text, const JsonLimits& limits) {
  if (text.size() > limits.max_bytes)
    return input_error(
        fmt::format("JSON of {} bytes exceeds the limit of {}", text.size(), limits.max_bytes));
  if (text.starts_with("\xEF\xBB\xBF"))
    return input_error("JSON starts with a byte order mark: remove it");
  Builder<Value> builder(text, limits.max_depth);
  if (!Value::sax_parse(text.begin(), text.end(), &builder)) return input_error(builder.fault());
  return builder.take();
}

}  // namespace

Result<Json> parse_json(std::string_view text, const JsonLimits& limits) {
  return parse<Json>(text, limits);
}

Result<OrderedJson> parse_ordered_json(std::string_view text, const JsonLimits& limits) {
  return parse<OrderedJson>(text, limits);
}

OrderedJson object_of(std::initializer_list<std::pair<std::string_view, OrderedJson>> members) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [name, value] : members) object[std::string(name)] = value;
  return object;
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string json_text(const OrderedJson& value, int indent) {
  return value.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string ascii_json_text(const OrderedJson& value) {
  return value.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}

}  // namespace foresail
